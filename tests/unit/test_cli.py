"""The command line: results on stdout, errors as one line on stderr, quick to start."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import HandMade, dims

from shardscope import cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, ready in ((0, 10), (1, 30)):
        trace = HandMade(rank).step(1, 0, 60).op("aten::mm", 0, ready)
        trace.op("c10d::allreduce_", ready, ready + 1, **dims(4)).span("gloo:all_reduce", ready + 1, 47, **dims(4))
        trace.write(tmp_path / f"rank{rank}.json")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "attribute", folder)
    assert (status, err) == (0, "")
    sections = dict(section.split("\n", 1) for section in out.split("\n\n")[1:])
    shares = next(body for heading, body in sections.items() if heading.startswith("WHERE THE STEP WENT")).splitlines()
    assert shares[0].split() == ["rank", "step", "compute", "all-reduce", "idle/host"]
    assert shares[1].split() == ["0", "60.0", "µs", "16.7", "61.7", "21.7"]
    assert shares[2].split() == ["1", "60.0", "µs", "50.0", "28.3", "21.7"]
    costs = next(body for heading, body in sections.items() if heading.startswith("COMMUNICATION")).splitlines()
    assert costs[1].split() == ["0", "61.7", "0.0", "61.7", "28.3", "33.3"]
    assert costs[2].split() == ["1", "28.3", "0.0", "28.3", "28.3", "0.0"]
    waiting = "rank 1: 20.0 µs of exposed waiting over all ranks; last to arrive in 1 of 1 collectives"
    assert waiting in sections["WHO KEEPS THE OTHERS WAITING"]
    assert "on a CPU" in sections["TO BEAR IN MIND"]


def test_json_and_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "attribute", folder / "rank0.json", folder / "rank1.json", "--format", "json")
    assert status == 0
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [0, 1]
    status, out, _ = run(capsys, "attribute", folder, "--format", "csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["wait_all_reduce_ns"] for row in rows] == ["20000", "0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no timed events"),
        ('{"traceEvents": [', "cut at byte"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "du', "--salvage"),
        ("not json at all", "no timed events"),
        ('{"traceEvents": {"a": 1}}', "no timed events"),
        ("[1, 2, 3]", "no timed events"),
    ],
)
def test_errors_are_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "evil\nname\x1b[31m.json"
    path.write_text(text)
    status, out, err = run(capsys, "attribute", path)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert words in err


def test_ranks_by_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rank0.json", "rank1.json"):
        document = json.loads((folder / name).read_text())
        del document["distributedInfo"]
        (folder / name).rename(folder / f"trace_{'ab'[int(name[4])]}.json").write_text(json.dumps(document))
    status, _, err = run(capsys, "attribute", folder)
    assert status == 2
    assert "--rank FILE=N" in err
    given = ("--rank", f"{folder}/trace_a.json=3", "--rank", f"{folder}/trace_b.json=1", "--format", "json")
    status, out, _ = run(capsys, "attribute", folder, *given)
    assert status == 0
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [1, 3]
    assert run(capsys, "attribute", folder, "--rank", "x=y")[0] == 2
    assert run(capsys, "attribute", folder, "--rank", "nowhere.json=1")[0] == 2


def test_names_from_traces_cannot_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = HandMade(0, 1).step(1, 0, 100).op("aten::mm", 0, 10)
    trace.span("evil\x1b]0;title\x07\nname", 10, 100, tid=1).write(tmp_path / "rank0.json")
    status, out, _ = run(capsys, "attribute", tmp_path)
    assert status == 0
    assert "evil" in out
    assert "\x1b" not in out
    assert "\nname" not in out


def test_a_defect_is_one_line_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> tuple[int, str]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "_attribute", broken)
    status, out, err = run(capsys, "attribute", folder)
    assert (status, out) == (1, "")
    assert err.startswith("defect: ZeroDivisionError")
    assert err.count("\n") == 1


def test_version_starts_without_loading_anything_heavy() -> None:
    code = (
        "import sys\nfrom shardscope import cli\n"
        "try:\n    cli.main(['--version'])\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(sorted({'numpy', 'pandas', 'torch', 'msgspec', 'hta'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.splitlines()
    assert version.startswith("shardscope ")
    assert loaded == "[]"


def test_help_names_the_ways_in(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((["--help"], ["attribute", "doctor", "examples"]), (["doctor", "--help"], ["status 0"])):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        out = capsys.readouterr().out
        assert all(word in out for word in words)
