"""Reading what an earlier stage wrote: one JSON document of a known type and schema, or one line why not."""

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from shardscope.errors import ResultError

__all__ = ["load_record"]


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
