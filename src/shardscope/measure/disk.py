"""Writing from inside a job: what cannot be written is said by name. Torch-free."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardscope.errors import MeasurementError, cannot_write

__all__ = ["Room", "export", "full_disk", "writing"]

_PROBE_BYTES = 1 << 14
_ROOM_BYTES = 1 << 15


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError, which for an open file does not say which, into a MeasurementError that names `path`."""
    try:
        yield
    except OSError as error:
        raise MeasurementError(cannot_write(path, error)) from error


def export(write: Callable[[str], object], path: Path) -> None:
    """Have the profiler write its trace to `path`. Raises MeasurementError.

    The profiler says nothing when it cannot: no file appears, and what it wrote so far stays beside.
    """
    with writing(path):
        write(str(path))
        if not path.is_file():
            _probe(path)
    if not path.is_file():
        raise MeasurementError(f"{path}: the profiler wrote no trace; see the log")


class Room:
    """Room on the disk for one short file that must still be written when nothing else can be."""

    def __init__(self, path: Path) -> None:
        """Take it now; `path` is where it is held. Raises MeasurementError."""
        self._path = path
        with writing(path):
            path.write_bytes(b" " * _ROOM_BYTES)

    def become(self, path: Path, data: bytes) -> None:
        """Make it the file `path`, with `data` and spaces after them. Raises OSError."""
        if len(data) > _ROOM_BYTES:
            raise ValueError(f"{len(data)} bytes for a room of {_ROOM_BYTES}")
        with self._path.open("r+b") as stream:  # in place: these blocks are ours already
            stream.write(data)
        self._path.replace(path)


def full_disk(folder: Path) -> str | None:
    """What to say if nothing more can be written in `folder` for want of room, else None."""
    try:
        _probe(folder / "probe")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cannot_write(folder, error)
    return None


def _probe(path: Path) -> None:
    """Write some bytes beside `path` and remove them. Raises OSError."""
    probe = path.with_name(f"{path.name}.probe")
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        with suppress(OSError):
            probe.unlink()
