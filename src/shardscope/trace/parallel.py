"""Reading many or large trace files in parallel processes.

Each process is a fresh interpreter with its own command line, not a copy of the caller, so that it does not matter what
the caller is: a script without a main guard, a notebook, a program with threads. Small inputs are read here: starting
an interpreter costs more than that.
"""

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from shardscope.errors import ShardscopeError, TraceError
from shardscope.trace import progress
from shardscope.trace.read import read_timeline
from shardscope.trace.table import Timeline

__all__ = ["read_all", "read_each"]

_WORTH_BYTES = 24 << 20  # text beside the largest share that pays for starting processes
_PACKED = 10  # text per compressed byte, about
_MOST_PROCESSES = 8
Outcome = Timeline | ShardscopeError


def read_all(paths: Sequence[Path], *, salvage: bool = False) -> list[Timeline]:
    """The timelines of the files, in their order. Raises the error of the first file that has one."""
    timelines = []
    for outcome in read_each(paths, salvage=salvage, stop=True):
        if isinstance(outcome, ShardscopeError):
            raise outcome
        timelines.append(outcome)
    return timelines


def read_each(paths: Sequence[Path], *, salvage: bool = False, stop: bool = False) -> list[Outcome]:
    """For each file its timeline or why it cannot be read, in order; with `stop` nothing after the first error."""
    progress.expect(paths)
    groups = _groups(paths)
    if len(groups) < 2:
        return _here(paths, salvage, stop)
    from concurrent.futures import ThreadPoolExecutor  # a single small trace does not wait for it to load

    with ThreadPoolExecutor(len(groups)) as pool:
        outcomes = list(pool.map(lambda group: _elsewhere([paths[i] for i in group], salvage), groups))
    placed: dict[int, Outcome] = {}
    for group, found in zip(groups, outcomes, strict=True):
        placed |= zip(group, found, strict=True)
    return [placed[i] for i in range(len(paths))]


def _here(paths: Sequence[Path], salvage: bool, stop: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for path in paths:
        try:
            outcomes.append(read_timeline(path, salvage=salvage))
        except ShardscopeError as error:
            outcomes.append(error)
            if stop:
                break
    return outcomes


def _groups(paths: Sequence[Path]) -> list[list[int]]:
    """Files shared out so that each process has about the same to read; one group if more are not worth it."""
    sizes = [_text_bytes(path) for path in paths]
    count = min(len(paths), _processors(), _MOST_PROCESSES)
    loads = [0] * max(count, 1)
    groups: list[list[int]] = [[] for _ in loads]
    for i in sorted(range(len(paths)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        loads[least] += sizes[i]
        groups[least].append(i)
    return groups if sum(loads) - max(loads) >= _WORTH_BYTES else [list(range(len(paths)))]


def _text_bytes(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * _PACKED if path.suffix == ".gz" else size


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _elsewhere(paths: Sequence[Path], salvage: bool) -> list[Outcome]:
    """Read files one after the other in a process of their own. A process that dies is an error of the file it read."""
    import subprocess

    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    # -P: nothing is imported from the folder the user is in, which may be one of untrusted files.
    command = [sys.executable, "-P", "-m", "shardscope.trace.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            return _exchange(process.stdin, process.stdout, paths, salvage)
        finally:
            process.kill()


def _exchange(request: IO[bytes], answers: IO[bytes], paths: Sequence[Path], salvage: bool) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        pickle.dump(([str(path) for path in paths], salvage), request)
        request.close()
        for _ in paths:
            outcomes.append(pickle.load(answers))
            if isinstance(outcomes[-1], RuntimeError):
                raise outcomes[-1]
    except (EOFError, OSError, pickle.UnpicklingError):
        at = paths[len(outcomes)]
        reason = (
            f"{at}: the process that read it ended early, perhaps for want of memory; analyse fewer files at a time"
        )
        outcomes += [TraceError(reason)] * (len(paths) - len(outcomes))
    return outcomes
