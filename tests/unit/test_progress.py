"""How far a job is: on a terminal in one line, elsewhere nowhere; estimates against hand-computed answers."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardscope.measure.job import Job
from shardscope.measure.progress import PIPE, Estimate, Phase, Reporter, Watch, phases
from shardscope.measure.settings import MeasureSettings
from shardscope.progress import Inbox, Outbox, StatusLine, on_terminal, time_left
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="w", layers=2, hidden=8, heads=2, sequence_length=8, global_batch=4, micro_batches=2)
SETTINGS = MeasureSettings(triples=5, warmup_steps=2, requests=10, loss_steps=4, profiled_steps=1)


def job(folder: Path, mode: str = "alternate", strategy: str = "zero3") -> Job:
    return Job(
        spec=SPEC, strategy=strategy, parameters={}, baseline="ddp", baseline_parameters={}, settings=SETTINGS,
        mode=mode, reference="", folder=str(folder),  # type: ignore[arg-type]
    )  # fmt: skip


def on_pty(code: str, *arguments: str, columns: int = 100) -> tuple[bytes, int]:
    """What Python `code` shows on a terminal as its stderr, and its exit status."""
    main, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end, env=environment) as process:
        os.close(end)
        text = b""
        try:
            while data := os.read(main, 1 << 16):
                text += data
        except OSError:  # how Linux says that the other end is closed
            pass
        os.close(main)
        return text, process.wait(60)


def lines(text: bytes) -> list[str]:
    """What was to be seen, one after the other."""
    return [line.rstrip() for line in text.decode().split("\r") if line.strip()]


def test_a_pipe_brings_whole_lines_and_never_holds_up_the_writer(tmp_path: Path) -> None:
    nobody = Outbox(tmp_path / "absent")
    nobody.send("lost")
    inbox = Inbox(tmp_path / "pipe")
    first, second = Outbox(tmp_path / "pipe"), Outbox(tmp_path / "pipe")
    assert inbox.take() == []
    first.send("one")
    second.send("two\N{BULLET}")
    assert inbox.take() == ["one", "two?"]
    start = time.monotonic()
    for number in range(50_000):  # more than a pipe holds, and nobody reads
        first.send(f"line {number}")
    assert time.monotonic() - start < 20
    kept = inbox.take()
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 1000 < len(kept) < 50_000
    inbox.close()
    first.send("after the end")


def test_a_line_is_written_over_and_cleared() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.clear()
    for text in ("a long one", "short", "short", "with\nbreak"):
        line.show(text)
    line.clear()
    assert stream.getvalue() == "\ra long one\rshort     \rwith?break\r          \r"
    line.show("x" * 200)
    assert stream.getvalue().endswith("\r" + "x" * 79), "as wide as the terminal, or 80 columns where that is unknown"


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert not on_terminal(io.StringIO())
    with Watch(job(tmp_path)) as watch:
        Reporter(tmp_path).tell("timing", 1)
        watch.look()
    assert not (tmp_path / PIPE).exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.7, "about 1 s"), (9.4, "about 9 s"), (12, "about 10 s"), (88, "about 90 s"), (91, "about 2 min")],
)
def test_time_left_is_no_more_exact_than_it_is(seconds: float, words: str) -> None:
    assert time_left(seconds) == f"{words} left"


def test_the_estimate_follows_what_is_measured() -> None:
    """Steps of 2 s after a slow first one; triples that cost 3 steps then turn out to take 9 s each."""
    estimate = Estimate(
        (Phase("start"), Phase("steps", "steps", 4, 1), Phase("memory", cost=5), Phase("timing", "triples", 10, 3))
    )
    assert estimate.left_s() is None
    estimate.note("steps", 0, 10)
    estimate.note("steps", 1, 17)
    assert estimate.left_s() is None, "one slow step tells nothing"
    estimate.note("steps", 2, 19)
    assert estimate.left_s() == 2 * 2 + 5 * 2 + 30 * 2
    assert estimate.left_s(silent_s=1) == 73
    assert estimate.left_s(silent_s=100) == 70, "a late step does not make the phases after it shorter"
    assert estimate.text() == "steps 2/4 steps (phase 2 of 4), about 75 s left"
    estimate.note("memory", 0, 23)
    assert estimate.left_s(silent_s=4) == 6 + 60
    assert estimate.text() == "memory (phase 3 of 4), about 70 s left"
    estimate.note("nonsense", 7, 24)
    estimate.note("timing", 0, 33)
    assert estimate.left_s() == 60
    estimate.note("timing", 1, 42)
    estimate.note("timing", 3, 60)
    assert estimate.left_s() == 7 * 9
    estimate.note("timing", 10, 123)
    assert estimate.text() == "timing 10/10 triples (phase 4 of 4)"


def test_a_phase_that_comes_twice_is_told_apart() -> None:
    estimate = Estimate((Phase("a", "steps", 2, 1), Phase("b"), Phase("a", "steps", 2, 1)))
    for name, done in (("a", 1), ("a", 2), ("b", 0), ("a", 1)):
        estimate.note(name, done, 1.0)
    assert (estimate.at, estimate.done) == (2, 1)


def test_what_a_job_goes_through(tmp_path: Path) -> None:
    both = phases(job(tmp_path), "alternate")
    assert [(phase.name, phase.count) for phase in both if phase.unit] == [
        ("parity", 4), ("warm-up", 4), ("timing", 5), ("request latency", 10),
    ]  # fmt: skip
    blocks = [phase.name for phase in phases(job(tmp_path), "blocks")]
    assert blocks.count("timing") == 3
    assert [phase.name for phase in phases(job(tmp_path), "alone")].count("timing") == 1
    assert "timing with all cores" in [phase.name for phase in phases(job(tmp_path, strategy="single"), "alone")]
    assert phases(job(tmp_path, "reference"), "reference")[-1] == Phase("training", "steps", 4, 1)


FAKE_JOB = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_progress as t
from shardscope.measure.progress import PIPE, Reporter, Watch
folder = Path(sys.argv[1])
with Watch(t.job(folder)) as watch:
    rank = Reporter(folder)
    for phase, count in (("parity", 4), ("timing", 5)):
        for done in range(count + 1):
            rank.tell(phase, done)
            time.sleep(0.05)
            watch._looked = 0.0
            watch.look()
    (folder / PIPE).open("w").write("not from a rank\\n")
    watch._looked = 0.0
    watch.look()
print("the next output", file=sys.stderr)
"""


def test_a_terminal_shows_strategy_phase_count_and_time_left(tmp_path: Path) -> None:
    text, status = on_pty(FAKE_JOB, str(tmp_path), str(Path(__file__).parent))
    assert status == 0
    seen = lines(text)
    assert seen[0] == "w/zero3: starting"
    assert "w/zero3: parity 1/4 steps (phase 4 of 11)" in seen
    assert any(re.fullmatch(r"w/zero3: parity 2/4 steps \(phase 4 of 11\), about \d+ s left", line) for line in seen)
    assert any(line.startswith("w/zero3: timing 5/5 triples (phase 9 of 11)") for line in seen)
    assert text.count(b"\n") == 1
    assert text.endswith(b"\rthe next output\r\n"), "the line is gone before anything else is said"


READING = """
import sys, time
from pathlib import Path
from shardscope.trace import progress
with progress.shown():
    paths = [Path(name) for name in sys.argv[1:]]
    progress.expect([*paths, Path("absent")])
    for path in paths:
        progress.advance(path.stat().st_size // 2)
        time.sleep(0.3)
        progress.advance(-(-path.stat().st_size // 2))
        time.sleep(0.3)
progress.advance(1)
print("result", file=sys.stderr)
"""


def test_a_long_reading_shows_bytes_and_a_short_one_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (30_000_000, 10_000_000), strict=True):
        with path.open("wb") as stream:
            stream.truncate(size)
    text, status = on_pty(READING, *map(str, paths))
    assert status == 0
    seen = lines(text)
    assert "reading 2 trace files: 15 of 40 MB (37 %)" in seen
    assert seen[-2:] == ["40 MB read, analysing", "result"]
    assert on_pty(READING, str(paths[1]))[0] == b"result\r\n"
    done = subprocess.run([sys.executable, "-c", READING, *map(str, paths)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "result\n")


def test_the_command_line_shows_it_and_its_output_stays_clean(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 2e5, "pid": 1, "tid": 1}]
    one = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 1, "pid": 1, "tid": 1, "args": {"filler": "x" * 400}}
    events += [{**one, "ts": 2 * number} for number in range(60_000)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    code = "import sys; from shardscope.cli import main; sys.exit(main(['attribute', *sys.argv[1:]]))"
    often = "from shardscope.trace import progress; progress._LOOK_S = 0.002; "  # a fast machine has read it at once
    text, status = on_pty(often + code, str(path))
    assert status == 0, text
    assert any(line.startswith("reading 1 trace file: ") and line.endswith(" %)") for line in lines(text)), text
    assert b"\n" not in text
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_many_writers_into_one_pipe_are_not_mixed(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "pipe")
    names = ("a" * 100, "b" * 200)
    writers = [threading.Thread(target=_repeat, args=(tmp_path / "pipe", name)) for name in names]
    for writer in writers:
        writer.start()
    got = []
    while any(writer.is_alive() for writer in writers):
        got += inbox.take()
    got += inbox.take()
    inbox.close()
    assert got
    assert set(got) <= set(names)


def _repeat(path: Path, line: str) -> None:
    outbox = Outbox(path)
    for _ in range(2000):
        outbox.send(line)
