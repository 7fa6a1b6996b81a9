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

_HUGE = 1 << 62
_NO_ARGS = Args()
_JOIN_BATCHES = 32
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
    return number if -_HUGE < number < _HUGE else -1


@dataclass
class TimelineBuilder:
    """Collects batches of events and makes the Timeline."""

    path: Path
    names: Strings = field(default_factory=Strings)
    categories: Strings = field(default_factory=Strings)
    threads: Strings = field(default_factory=Strings)
    columns: list[list[NDArray[Any]]] = field(default_factory=lambda: [[] for _ in COLUMNS])
    args: dict[int, Args] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    _classes: dict[str | None, Class] = field(default_factory=dict)
    _speaking: "_Speaking" = field(default_factory=lambda: _Speaking())
    _shared: dict[Any, Any] = field(default_factory=dict)
    _count: int = 0
    _batches: int = 0  # since columns were last joined

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
        batch_columns = (start, start + duration, kinds, *self._codes(keep), *self._ids(keep, kinds))
        for parts, column in zip(self.columns, batch_columns, strict=True):
            parts.append(column)
        self._batches += 1
        if self._batches == _JOIN_BATCHES:
            self._batches = 0
            for parts in self.columns:
                # Small arrays leave holes in memory that the final table cannot use.
                parts[-_JOIN_BATCHES:] = [np.concatenate(parts[-_JOIN_BATCHES:])]
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
        names = [event.name if type(event.name) is str else str(event.name) for event in keep]
        return (
            np.fromiter(map(self.names.__getitem__, names), np.int32, len(keep)),
            np.fromiter((self.categories[event.cat] for event in keep), np.int32, len(keep)),
            np.fromiter((self.threads[event.pid, event.tid] for event in keep), np.int32, len(keep)),
        )

    def _ids(self, keep: list[Event], kinds: NDArray[np.int8]) -> tuple[NDArray[np.int64], ...]:
        """Stream, device, correlation and external id of each event; the arguments that speak are kept aside."""
        found = [event.args or _NO_ARGS for event in keep]
        stream, device = np.full((2, len(keep)), -1, dtype=np.int64)
        rows = np.flatnonzero((kinds == Class.KERNEL) | (kinds == Class.COPY)).tolist()
        if rows:
            lanes = [keep[row].tid if found[row].stream is None else found[row].stream for row in rows]
            stream[rows] = _integers(lanes)
            device[rows] = _integers([found[row].device for row in rows])
        speaking = self._speaking
        for row, (event, args) in enumerate(zip(keep, found, strict=True)):
            if args.collective is not None or speaking[event.name]:
                self.args[self._count + row] = self._detached(args)
        external = [a.external_of_2021 if a.external is None else a.external for a in found]
        return stream, device, _integers([a.correlation for a in found]), _integers(external)

    def _detached(self, args: Args) -> Args:
        """Raw fields are views into the batch's text; shared copies let that text go, and most of them are equal."""
        shared = self._shared
        for name in ("group_ranks", "dims", "types", "concrete"):
            raw = getattr(args, name)
            if raw is not RAW_ABSENT and len(raw):
                text = bytes(raw)
                known = shared.get(text)
                setattr(args, name, shared.setdefault(text, raw.copy()) if known is None else known)
        for name in ("collective", "dtype", "group_name", "group_description"):
            value = getattr(args, name)
            if type(value) is str:
                setattr(args, name, shared.setdefault(value, value))
        return args

    def finish(self, metadata: dict[str, Any], base_ns: int, cut: str | None) -> Timeline:
        """The table of everything added, sorted; device records written twice are kept once."""
        columns: dict[str, Any] = self._joined()
        order = np.lexsort((-columns["end"], columns["start"]))
        for name in COLUMNS:
            columns[name] = columns[name][order]
        keep = self._first_records(columns) & ~self._device_side(columns)
        if not keep.all():
            order = order[keep]
            for name in COLUMNS:
                columns[name] = columns[name][keep]
        args = self.args
        if args:
            place = np.full(self._count, -1, dtype=np.int64)
            place[order] = np.arange(len(order))
            args = {new: value for row, value in args.items() if (new := int(place[row])) >= 0}
        return Timeline(
            self.path, metadata, base_ns, **columns,
            names=self.names.texts, categories=self.categories.texts, threads=self.threads.texts, args=args,
            warnings=self.warnings, dropped=self.dropped, cut=cut,
        )  # fmt: skip

    def _joined(self) -> dict[str, NDArray[Any]]:
        """One array per column; the parts go as soon as they are joined, since together they are most of the memory."""
        types = (np.int64, np.int64, np.int8, *[np.int32] * 3, *[np.int64] * 4)
        columns: dict[str, NDArray[Any]] = {}
        for name, parts, kind in zip(COLUMNS, self.columns, types, strict=True):
            columns[name] = np.concatenate(parts) if parts else np.empty(0, kind)
            parts.clear()
        return columns

    def _device_side(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Annotations that an older profiler drew on the device's rows under the host's category: never time."""
        kind, thread = columns["kind"], columns["thread"]
        streams = np.setdiff1d(
            np.unique(thread[(kind == Class.KERNEL) | (kind == Class.COPY)]),
            np.unique(thread[(kind == Class.HOST_OP) | (kind == Class.RUNTIME)]),
        )
        found: NDArray[np.bool_] = (kind == Class.ANNOTATION) & np.isin(thread, streams)
        if found.any():
            self.dropped["annotation on a device"] += int(found.sum())
        return found

    def _first_records(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
        kind = columns["kind"]
        keep = np.ones(len(kind), dtype=bool)
        rows = np.flatnonzero(((kind == Class.KERNEL) | (kind == Class.COPY)) & (columns["correlation"] >= 0))
        if len(rows) < 2:
            return keep
        compared = ("start", "end", "name", "stream", "device", "correlation")
        records = np.column_stack([columns[column][rows] for column in compared])
        order = np.lexsort(records.T[::-1])
        same = np.zeros(len(rows), dtype=bool)
        same[order[1:]] = (records[order[1:]] == records[order[:-1]]).all(axis=1)
        if same.any():
            self.warnings["duplicate_record"] += int(same.sum())
            keep[rows[same]] = False
        return keep


class _Speaking(dict[Any, bool]):
    """Is this the name of a host event whose shapes and inputs attribution reads?"""

    def __missing__(self, name: Any) -> bool:
        found = self[name] = type(name) is str and name.startswith(_SPEAKING)
        return found


_SPEAKING = ("c10d::", "gloo:", "_c10d_functional", "record_param_comms", "nccl:")


def _integers(values: list[Any]) -> NDArray[np.int64]:
    """Like `integer`, for many."""
    try:
        column = np.fromiter((-1 if value is None else value for value in values), np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(integer, values), np.int64, len(values))
    column[(column <= -_HUGE) | (column >= _HUGE)] = -1
    return column
