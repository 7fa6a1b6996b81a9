"""Every way a job of the workflow ends: what the console and the log say, and the exit status."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = """
import sys, time
from pathlib import Path
from shardscope.bridge import reporting_to
from shardscope.errors import ResultError
with reporting_to(sys.argv[1]):
    {body}
"""


def _run(log: Path, body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", JOB.format(body=body), str(log)], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("body", "status", "line", "details"),
    [
        ("raise ResultError('it is broken; mend it')", 2, "error: it is broken; mend it", False),
        ("open('/no/such/folder/x', 'w')", 2, "error: /no/such/folder/x: No such file or directory; is the disk", True),
        ("raise OSError(28, 'No space left on device')", 2, "error: No space left on device; is the disk full", True),
        ("raise MemoryError()", 2, "error: this process ran out of memory", True),
        ("raise ValueError('a\\nb')", 1, "defect: ValueError: a b (details in ", True),
        ("raise KeyboardInterrupt", 130, "stopped: interrupted", False),
    ],
)
def test_endings(tmp_path: Path, body: str, status: int, line: str, details: bool) -> None:
    log = tmp_path / "logs" / "job.log"
    done = _run(log, body)
    assert done.returncode == status
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    logged = log.read_text(encoding="utf-8")
    assert logged.startswith(done.stderr) and ("Traceback" in logged) is details


def test_success_leaves_an_empty_log(tmp_path: Path) -> None:
    assert _run(tmp_path / "logs" / "job.log", "pass").returncode == 0
    assert (tmp_path / "logs" / "job.log").read_bytes() == b""


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way", encoding="utf-8")
    done = _run(tmp_path / "logs" / "job.log", "raise ResultError('it is broken')")
    assert (done.returncode, done.stderr) == (2, "error: it is broken\n")


WAITING = """
    import tempfile, os
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as folder:
        Path(folder, "ready").touch()
        time.sleep(60)
"""


def _ready(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while not list(folder.glob("*/ready")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_job_clears_away_what_it_began(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", JOB.format(body=WAITING), str(tmp_path / "log")]) as job:
        _ready(tmp_path)
        job.send_signal(number)
        assert job.wait(20) == 128 + number
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel tells of a parent's death on Linux only")
def test_a_job_does_not_outlive_its_scheduler(tmp_path: Path) -> None:
    scheduler = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    command = [sys.executable, "-c", scheduler, JOB.format(body=WAITING), str(tmp_path / "log")]
    with subprocess.Popen(command) as parent:
        _ready(tmp_path)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(20)
    deadline = time.monotonic() + 20
    while [path for path in tmp_path.iterdir() if path.is_dir()]:
        assert time.monotonic() < deadline, "the job went on"
        time.sleep(0.02)
