"""JSON documents between stages: written whole or not at all, read with a known type and schema or one line why not."""

from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from shardscope.errors import ResultError, cannot_write

__all__ = ["load_record", "save_record"]


class _Versioned(Protocol):
    @property
    def schema(self) -> int: ...


_T = TypeVar("_T", bound=_Versioned)


def load_record(
    path: Path, kind: type[_T], *, schema: int, called: str, remedy: str, absent: str = "", if_absent: str = ""
) -> _T:
    """Decode the file `path` as `kind`, written with the number `schema`.

    called, remedy: what the document is and what to do without it, for the messages. absent, if_absent: how a file
    that cannot be opened is told, and what to do then, where that differs. Raises ResultError.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        told = absent or f"{path}: cannot be read"
        raise ResultError(f"{told} ({error.strerror}); {if_absent or remedy}") from error
    try:
        record = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ResultError(f"{path}: not {called} of this version ({error}); {remedy}") from error
    if record.schema != schema:
        raise ResultError(f"{path}: schema {record.schema}, expected {schema}; {remedy}")
    return record


def save_record(record: msgspec.Struct, path: Path) -> None:
    """Write `path` whole or not at all, its folder with it. Raises ResultError when it cannot be written."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()  # half a document takes up room that may be what is missing
        raise ResultError(cannot_write(path, error)) from error
