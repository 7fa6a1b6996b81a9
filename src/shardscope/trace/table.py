"""Timeline: the timed events of one trace file as typed columns."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardscope.trace.events import RAW_ABSENT, Args, Class, Event, class_of
from shardscope.trace.numbers import ABSENT, nanoseconds

__all__ = ["COLUMNS", "Strings", "Timeline", "TimelineBuilder"]

COLUMNS = (
    "start", "end", "kind", "name", "category", "thread", "stream", "device", "correlation", "external",
)  # fmt: skip


class Strings:
    """Interned strings: `codes[text]` gives the number, `texts[number]` the string."""

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}
        self.texts: list[Any] = []

    def code(self, text: Any) -> int:
        """The number of a string, new or known."""
        found = self.codes.get(text)
        if found is None:
            found = self.codes[text] = len(self.texts)
            self.texts.append(text)
        return found


@dataclass
class Timeline:
    """One row per timed event, sorted by start, longest first. Times are ns after `base_ns`, ends are exclusive.

    Columns of shape (rows,): start, end (int64); kind (int8, trace.events.Class); name, category, thread (int32,
    numbers in `names`, `categories`, `threads`; a thread is a (pid, tid) pair); stream, device, correlation, external
    (int64, -1: none). `args` holds the decoded arguments of rows that carry communication metadata.
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
    return number if -(1 << 62) < number < (1 << 62) else -1


@dataclass
class TimelineBuilder:
    """Collects batches of events and makes the Timeline."""

    path: Path
    names: Strings = field(default_factory=Strings)
    categories: Strings = field(default_factory=Strings)
    threads: Strings = field(default_factory=Strings)
    columns: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    args: dict[int, Args] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    _classes: dict[str | None, Class] = field(default_factory=dict)
    _count: int = 0

    def add(self, batch: list[Event]) -> None:
        """Take what can be time out of a batch."""
        classes = self._classes
        keep = []
        for event in batch:
            if event.ph != "X":
                continue
            found = classes.get(event.cat)
            if found is None:
                found = classes[event.cat] = class_of(event.cat or "")
            if found:
                keep.append(event)
            else:
                self.dropped[event.cat or ""] += 1
        if not keep:
            return
        start = nanoseconds([event.ts for event in keep])
        duration = nanoseconds([event.dur for event in keep])
        usable = self._check(start, duration)
        if not usable.all():
            keep = [event for event, use in zip(keep, usable, strict=True) if use]
            start, duration = start[usable], duration[usable]
        if not keep:
            return
        kinds = np.fromiter((classes[event.cat] for event in keep), np.int8, len(keep))
        self.columns.append((start, start + duration, kinds, *self._codes(keep), *self._ids(keep, kinds)))
        self._count += len(keep)

    def _check(self, start: NDArray[np.int64], duration: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which events have times; unfinished (no duration) and negative ones count as instants of no length."""
        missing = start == ABSENT
        unfinished = (duration == ABSENT) & ~missing
        negative = (duration < 0) & ~unfinished & ~missing
        for code, mask in (("no_time", missing), ("no_duration", unfinished), ("negative_duration", negative)):
            if mask.any():
                self.warnings[code] += int(mask.sum())
        duration[unfinished | negative] = 0
        usable: NDArray[np.bool_] = ~missing
        return usable

    def _codes(self, keep: list[Event]) -> tuple[NDArray[np.int32], ...]:
        name, category, thread = self.names.code, self.categories.code, self.threads.code
        size = len(keep)
        return (
            np.fromiter(
                (name(event.name if type(event.name) is str else str(event.name)) for event in keep), np.int32, size
            ),
            np.fromiter((category(event.cat) for event in keep), np.int32, size),
            np.fromiter((thread((event.pid, event.tid)) for event in keep), np.int32, size),
        )

    def _ids(self, keep: list[Event], kinds: NDArray[np.int8]) -> tuple[NDArray[np.int64], ...]:
        size = len(keep)
        ids = np.full((4, size), -1, dtype=np.int64)
        on_device = (kinds == Class.KERNEL) | (kinds == Class.COPY)
        for row, event in enumerate(keep):
            args = event.args
            if args is None:
                continue
            if args.external is not None:
                ids[3, row] = integer(args.external)
            if args.correlation is not None:
                ids[2, row] = integer(args.correlation)
            if on_device[row]:
                ids[0, row] = integer(args.stream if args.stream is not None else event.tid)
                ids[1, row] = integer(args.device if args.device is not None else event.pid)
            if args.collective is not None or _speaks(event.name):
                self.args[self._count + row] = _detached(args)
        return tuple(ids)

    def finish(self, metadata: dict[str, Any], base_ns: int, cut: str | None) -> Timeline:
        """The table of everything added, sorted; device records written twice are kept once."""
        if self.columns:
            columns: list[Any] = [np.concatenate(parts) for parts in zip(*self.columns, strict=True)]
        else:
            columns = [np.empty(0, dtype) for dtype in (np.int64, np.int64, np.int8, *[np.int32] * 3, *[np.int64] * 4)]
        self.columns.clear()
        start, end = columns[0], columns[1]
        order = np.lexsort((-end, start))
        order = order[self._first_records([column[order] for column in columns])]
        place = {int(old): new for new, old in enumerate(order)} if self.args else {}
        return Timeline(
            self.path, metadata, base_ns, **dict(zip(COLUMNS, (column[order] for column in columns), strict=True)),
            names=self.names.texts, categories=self.categories.texts, threads=self.threads.texts,
            args={place[row]: args for row, args in self.args.items() if row in place},
            warnings=self.warnings, dropped=self.dropped, cut=cut,
        )  # fmt: skip

    def _first_records(self, columns: list[NDArray[Any]]) -> NDArray[np.bool_]:
        start, end, kind, name, _, _, stream, device, correlation, _ = columns
        keep = np.ones(len(start), dtype=bool)
        rows = np.flatnonzero(((kind == Class.KERNEL) | (kind == Class.COPY)) & (correlation >= 0))
        if len(rows) < 2:
            return keep
        records = np.column_stack([column[rows] for column in (start, end, name, stream, device, correlation)])
        order = np.lexsort(records.T[::-1])
        same = np.zeros(len(rows), dtype=bool)
        same[order[1:]] = (records[order[1:]] == records[order[:-1]]).all(axis=1)
        if same.any():
            self.warnings["duplicate_record"] += int(same.sum())
            keep[rows[same]] = False
        return keep


def _speaks(name: str | int | float | None) -> bool:
    """Names of host events whose shapes and inputs attribution reads."""
    return type(name) is str and name.startswith(("c10d::", "gloo:", "_c10d_functional", "record_param_comms", "nccl:"))


def _detached(args: Args) -> Args:
    """Raw fields are views into the batch's text; copies let that text go."""
    for name in ("group_ranks", "dims", "types", "concrete"):
        raw = getattr(args, name)
        if raw is not RAW_ABSENT and len(raw):
            setattr(args, name, raw.copy())
    return args
