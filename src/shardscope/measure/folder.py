"""A result appears whole or not at all: work beside it, swap at the end, keep the earlier one if a rerun fails."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shardscope.errors import MeasurementError, ResultError
from shardscope.measure.record import RUN_FILE, RunRecord, TraceFile, load_run

__all__ = ["earlier_result", "publish", "working_folder"]


@contextmanager
def working_folder(output: Path) -> Iterator[Path]:
    """A new hidden folder beside `output`, gone afterwards. Clears what a killed run left there before."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _recover(output)
        prefix = _prefix(output, os.getpid())
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent.resolve()))
    except OSError as error:
        raise MeasurementError(
            f"{output.parent}: cannot hold results ({error.strerror}); choose another folder"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(record: RunRecord, files: dict[str, Path], output: Path, work: Path) -> None:
    """Make `output` a folder of `files` (name → where it lies now) and `record`, replacing what was there."""
    new = work / "new"
    new.mkdir()
    for name, source in files.items():
        try:
            os.link(source, new / name)
        except OSError:
            shutil.copyfile(source, new / name)
    part = new / f"{RUN_FILE}.part"
    with part.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(new / RUN_FILE)
    new.chmod(0o755)
    old = _old(output)
    if output.exists() and not output.is_dir():
        raise MeasurementError(f"{output}: is a file, a folder is to be written there; remove it")
    if output.exists():
        output.rename(old)  # a rename cannot replace a folder that has something in it
    new.rename(output)
    shutil.rmtree(old, ignore_errors=True)


def earlier_result(output: Path) -> RunRecord | None:
    """The record of the result that is there now, None if there is none that this version can read."""
    _recover(output)
    try:
        return load_run(output)
    except ResultError:
        return None


def kept_files(record: RunRecord, output: Path) -> dict[str, Path]:
    """Trace files of the result in `output`; empty if one is missing, for then it is no result any more."""
    files = {trace.file: output / Path(trace.file).name for trace in record.traces}
    return files if all(path.is_file() for path in files.values()) else {}


def trace_file(rank: int, path: Path) -> TraceFile:
    """Describe a trace that lies at `path`."""
    return TraceFile(rank=rank, file=path.name, bytes=path.stat().st_size)


def _old(output: Path) -> Path:
    return output.with_name(f".{output.name}.earlier")


def _prefix(output: Path, pid: int | str) -> str:
    return f".{output.name}.{socket.gethostname()}.{pid}."


def _recover(output: Path) -> None:
    """Undo what a process killed between two renames, or before its clean-up, has left behind."""
    old = _old(output)
    if old.exists() and not output.exists():
        old.rename(output)
    elif old.exists():
        shutil.rmtree(old, ignore_errors=True)
    start = _prefix(output, "")[:-1]
    for folder in output.parent.glob(f".{output.name}.*"):
        pid = folder.name.removeprefix(start).split(".")[0]
        if folder.name.startswith(start) and pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
