"""Timeline: the timed events of one trace file as typed columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardscope.trace.events import Args, Class

__all__ = ["COLUMNS", "Strings", "Timeline", "integer", "integers"]

_HUGE = 1 << 62
COLUMNS = (
    "start", "end", "kind", "name", "category", "thread", "stream", "device", "correlation", "external",
)  # fmt: skip


class Strings(dict[Any, int]):
    """Interned strings: `strings[text]` gives the number, new or known; `texts[number]` gives the string."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[Any] = []

    def __missing__(self, text: Any) -> int:
        number = self[text] = len(self.texts)
        self.texts.append(text)
        return number


@dataclass
class Timeline:
    """One row per timed event, sorted by start, longest first. Times are ns after `base_ns`, ends are exclusive.

    Columns of shape (rows,): start, end (int64); kind (int8, trace.events.Class); name, category, thread (int32,
    numbers in `names`, `categories`, `threads`; a thread is a (pid, tid) pair); stream, device, correlation, external
    (int64, -1: none, or not read: host rows have ids only where their name tells of communication). `args` holds the
    decoded arguments of rows that carry communication metadata.
    """

    path: Path
    metadata: dict[str, Any]
    base_ns: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    category: NDArray[np.int32]
    thread: NDArray[np.int32]
    stream: NDArray[np.int64]
    device: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    names: list[str]
    categories: list[str]
    threads: list[tuple[Any, Any]]
    args: dict[int, Args]
    warnings: Counter[str]
    dropped: Counter[str]  # events that are never time, by category
    cut: str | None = None
    parts: tuple[Path, ...] = ()  # all files, where several cycles were joined

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, kind: Class) -> NDArray[np.intp]:
        """Row numbers of one class of events."""
        return np.flatnonzero(self.kind == kind)


def integer(value: Any) -> int:
    """A number that producers write as int, float or text; -1 when it is none of these or out of range."""
    if isinstance(value, bool) or value is None:
        return -1
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -_HUGE < number < _HUGE else -1


def integers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Like `integer`, for many."""
    try:
        column = np.fromiter([-1 if value is None else value for value in values], np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(integer, values), np.int64, len(values))
    column[(column <= -_HUGE) | (column >= _HUGE)] = -1
    return column
