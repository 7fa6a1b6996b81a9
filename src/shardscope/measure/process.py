"""Start the agent, watch it, make sure nothing of it stays behind. Torch-free."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, TypeVar

import msgspec

from shardscope.measure.disk import full_disk
from shardscope.measure.environment import oom_kills
from shardscope.measure.job import (
    AGREED_FILE,
    EXITS_FILE,
    JOB_FILE,
    LOG_PREFIX,
    Agreed,
    Job,
    RankError,
    RankExit,
    RankExits,
    RankPhase,
    read_json,
    write_json,
)
from shardscope.measure.network import command_at_rate
from shardscope.measure.progress import Watch

__all__ = ["Ending", "run_job", "terminable"]

_T = TypeVar("_T", bound=msgspec.Struct)

_POLL_S = 0.1
_GRACE_S = 5.0
_TAIL_LINES = 30
_COUNT = re.compile(re.escape(LOG_PREFIX) + r".*: \d+ of \d+")
# torchrun repeats what the record says in fields; USDT lines are probes of the profiler
_NOISE = ("torch/distributed/elastic", "torch.distributed.elastic", "ChildFailedError", "USDT:")


@dataclass(frozen=True)
class Ending:
    """How a launch ended. ok: every rank finished by itself."""

    ok: bool
    timed_out: bool
    agent_exit: int
    exits: tuple[RankExit, ...]
    errors: tuple[RankError, ...]
    phases: tuple[RankPhase, ...]
    killed_for_memory: bool  # the cgroup's oom_kill counter rose meanwhile
    full_disk: str | None  # what to say about it, if nothing more can be written in the job's folder
    log_tail: tuple[str, ...]
    refused: str | None = None  # why the agent started no rank


def run_job(job: Job, log: BinaryIO, deadline: float) -> Ending:
    """Run one launch to its end and report it; `deadline` in time.monotonic() seconds. The folder must exist.

    Output of all ranks goes to `log`. If stderr is a terminal, one line there says how far the job is.
    """
    folder = Path(job.folder)
    write_json(folder / JOB_FILE, job)
    kills, start = oom_kills(), log.tell()
    command = [sys.executable, "-W", "ignore", "-m", "shardscope.measure.agent", str(folder), str(os.getpid())]
    if job.settings.rate_mbit is not None and job.mode != "reference":
        command = command_at_rate(job.settings.rate_mbit, command)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    timed_out = False
    with Watch(job) as watch:
        agent = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )
        try:
            while agent.poll() is None:
                watch.look()
                if time.monotonic() > deadline:
                    timed_out = True
                    break
                time.sleep(_POLL_S)
        finally:
            _end(agent, folder)
    exits = _read(folder / EXITS_FILE, RankExits)
    return Ending(
        ok=agent.returncode == 0 and not timed_out,
        timed_out=timed_out,
        agent_exit=agent.returncode,
        exits=exits.exits if exits is not None else (),
        errors=tuple(_read_all(folder, "error", RankError)),
        phases=tuple(_read_all(folder, "phase", RankPhase)),
        killed_for_memory=oom_kills() > kills,
        full_disk=full_disk(folder),
        log_tail=_tail(Path(log.name), start),
        refused=_refusal(folder),
    )


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that clean-up runs; SIGINT is an exception already."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(agent: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Stop the agent, which stops its ranks; then whatever is left of either."""
    if agent.poll() is None:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(_GRACE_S)
    if agent.poll() is None:
        agent.kill()
        agent.wait()
    # Ranks have sessions of their own. On Linux the kernel ends them with the agent; make sure elsewhere and for good.
    for phase in _read_all(folder, "phase", RankPhase):
        if _is_rank(phase.pid, folder):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(phase.pid, signal.SIGKILL)


def _is_rank(pid: int, folder: Path) -> bool:
    """Whether the process is still a rank of the job in `folder` (its number may belong to another by now)."""
    try:
        return os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _read(path: Path, kind: type[RankExits]) -> RankExits | None:
    try:
        return read_json(path, kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _refusal(folder: Path) -> str | None:
    try:
        return read_json(folder / AGREED_FILE, Agreed).refused
    except (OSError, msgspec.MsgspecError):
        return None


def _read_all(folder: Path, what: str, kind: type[_T]) -> Iterator[_T]:
    for path in sorted(folder.glob(f"rank*.{what}.json")):
        with suppress(OSError, msgspec.MsgspecError):
            yield read_json(path, kind)


def _tail(path: Path, position: int) -> tuple[str, ...]:
    """The last lines of a launch, without torchrun's report; of the counts of rounds only the last."""
    with path.open("rb") as stream:
        stream.seek(position)
        lines = stream.read().decode(errors="replace").splitlines()
    end = next((index for index, line in enumerate(lines) if "ChildFailedError" in line), len(lines))
    kept = [line for line in lines[:end] if line.strip() and not any(noise in line for noise in _NOISE)]
    counts = [index for index, line in enumerate(kept) if _COUNT.fullmatch(line)]
    kept = [line for index, line in enumerate(kept) if index not in counts[:-1]]
    return tuple(kept[-_TAIL_LINES:])
