"""From batches of events to a Timeline."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardscope.trace.events import RAW_ABSENT, Args, Class, Event, class_of
from shardscope.trace.numbers import ABSENT, nanoseconds
from shardscope.trace.repair import repair
from shardscope.trace.table import COLUMNS, Strings, Timeline, integers

__all__ = ["TimelineBuilder"]

_JOIN_BATCHES = 128
_NO_ARGS = Args()
_DECODER = msgspec.json.Decoder(Args | None)
_LIST_DECODER = msgspec.json.Decoder(list[Args | None])
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError)
# Host events whose arguments attribution reads: always, or where they name a collective.
_SPEAKING = ("c10d::", "gloo:", "_c10d_functional", "record_param_comms", "nccl:")
_STATING = ("rccl:", "xccl:", "c10d_functional")
_READ, _KEPT = 1, 2
_BRACE, _NULL, _NULL_TEXT = ord("{"), ord("n"), msgspec.Raw(b"null")


class _Names(Strings):
    """Names of events. `read[number]`: are the arguments of host events of this name read (1), or even kept (2)?"""

    def __init__(self) -> None:
        super().__init__()
        self.read = bytearray()

    def __missing__(self, name: Any) -> int:
        if type(name) is not str:  # a number, or nothing at all
            return self[str(name)]
        self.read.append(_KEPT if name.startswith(_SPEAKING) else _READ if name.startswith(_STATING) else 0)
        return super().__missing__(name)


class _Categories(Strings):
    """Categories of complete events; number 0 is no complete event. `classes[number]` is the class."""

    def __init__(self) -> None:
        super().__init__()
        self.texts.append(None)
        self.classes = bytearray(1)

    def __missing__(self, category: Any) -> int:
        self.classes.append(class_of(category or ""))
        return super().__missing__(category)


@dataclass
class TimelineBuilder:
    """Collects batches of events and makes the Timeline."""

    path: Path
    names: _Names = field(default_factory=_Names)
    categories: _Categories = field(default_factory=_Categories)
    threads: Strings = field(default_factory=Strings)
    columns: list[list[NDArray[Any]]] = field(default_factory=lambda: [[] for _ in COLUMNS])
    args: dict[int, Args] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    _shared: dict[Any, Any] = field(default_factory=dict)
    _count: int = 0
    _batches: int = 0  # since columns were last joined

    def add(self, batch: Sequence[Event]) -> None:
        """Take what can be time out of a batch.

        Where an event has to be left out or mended, what remains of the batch is added anew.
        """
        keep, category, kind = self._timed(batch)
        if not keep:
            return
        start = nanoseconds([event.ts for event in keep])
        missing = start == ABSENT
        if missing.any():
            self.warnings["no_time"] += int(missing.sum())
            self.add(list(compress(keep, (~missing).tolist())))
            return
        name = _numbers(self.names, [event.name for event in keep])
        read = np.frombuffer(bytes(self.names.read), np.uint8)[name]
        read[kind >= Class.KERNEL] |= _READ
        texts = [event.args for event in keep]
        rows = np.flatnonzero(read)
        found = _decoded([texts[row] for row in rows.tolist()])
        if found is None or not _are_objects(list(compress(texts, (read == 0).tolist()))):
            self.add(list(filter(self._readable, keep)))
            return
        self._keep_args(rows, found, (read[rows] & _KEPT) > 0)
        lanes = zip([event.pid for event in keep], [event.tid for event in keep], strict=True)
        thread = _numbers(self.threads, lanes)
        self._append(start, start + self._lengths(keep), kind, name, category, thread, *_ids(keep, kind, rows, found))

    def _timed(self, batch: Sequence[Event]) -> tuple[list[Event], NDArray[np.int32], NDArray[np.int8]]:
        """The events that can be time, their categories and classes; other complete events are counted."""
        numbers = self.categories
        found = [numbers[event.cat] if event.ph == "X" else 0 for event in batch]
        category = np.array(found, dtype=np.int32)
        kind = np.frombuffer(bytes(numbers.classes), np.int8)[category]
        timed = kind > 0
        if timed.all():
            return list(batch), category, kind
        counts = np.bincount(category[~timed])
        for number in np.flatnonzero(counts).tolist():
            if number:
                self.dropped[numbers.texts[number] or ""] += int(counts[number])
        return list(compress(batch, timed.tolist())), category[timed], kind[timed]

    def _readable(self, event: Event) -> bool:
        """Are the arguments an object, once their text is mended? Otherwise the event is none, which is counted."""
        try:
            _DECODER.decode(event.args or _NULL_TEXT)
            return True
        except msgspec.ValidationError:
            pass
        except _FAULTS:
            mended, counts = repair(bytes(event.args))
            try:
                _DECODER.decode(mended)
            except _FAULTS:
                pass
            else:
                event.args = msgspec.Raw(mended)
                self.warnings += counts
                return True
        self.warnings["malformed_event"] += 1
        return False

    def _lengths(self, events: Sequence[Event]) -> NDArray[np.int64]:
        """Durations; unfinished events (no duration) and negative ones count as instants of no length."""
        duration = nanoseconds([event.dur for event in events])
        unfinished = duration == ABSENT
        negative = (duration < 0) & ~unfinished
        for code, mask in (("no_duration", unfinished), ("negative_duration", negative)):
            if mask.any():
                self.warnings[code] += int(mask.sum())
                duration[mask] = 0
        return duration

    def _keep_args(self, rows: NDArray[np.intp], found: Sequence[Args], always: NDArray[np.bool_]) -> None:
        """Keep the arguments that speak of communication: of some names always, else where they name a collective."""
        for row, args, speaks in zip(rows.tolist(), found, always.tolist(), strict=True):
            if speaks or args.collective is not None:
                self.args[self._count + row] = self._detached(args)

    def _append(self, *batch_columns: NDArray[Any]) -> None:
        for parts, column in zip(self.columns, batch_columns, strict=True):
            parts.append(column)
        self._batches += 1
        if self._batches == _JOIN_BATCHES:
            self._batches = 0
            for parts in self.columns:
                # Small arrays leave holes in memory that the final table cannot use.
                parts[-_JOIN_BATCHES:] = [np.concatenate(parts[-_JOIN_BATCHES:])]
        self._count += len(batch_columns[0])

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
        categories = self._used_categories(columns)
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
            names=self.names.texts, categories=categories, threads=self.threads.texts, args=args,
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

    def _used_categories(self, columns: dict[str, NDArray[Any]]) -> list[str]:
        """Categories of the events that are kept, and their numbers in place of all categories' numbers."""
        used = np.flatnonzero(np.bincount(columns["category"], minlength=len(self.categories.texts)))
        columns["category"] = np.searchsorted(used, columns["category"]).astype(np.int32)
        return [self.categories.texts[number] for number in used.tolist()]

    def _device_side(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Annotations that an older profiler drew on the device's rows under the host's category: never time."""
        kind, thread = columns["kind"], columns["thread"]
        device = np.zeros(len(self.threads.texts), dtype=bool)
        device[thread[(kind == Class.KERNEL) | (kind == Class.COPY)]] = True
        device[thread[(kind == Class.HOST_OP) | (kind == Class.RUNTIME)]] = False
        found: NDArray[np.bool_] = (kind == Class.ANNOTATION) & device[thread]
        if found.any():
            self.dropped["annotation on a device"] += int(found.sum())
        return found

    def _first_records(self, columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Without the device records that repeat another. The columns are sorted, so these stand near each other."""
        kind = columns["kind"]
        keep = np.ones(len(kind), dtype=bool)
        rows = np.flatnonzero(((kind == Class.KERNEL) | (kind == Class.COPY)) & (columns["correlation"] >= 0))
        if not len(rows):
            return keep
        start, end = columns["start"][rows], columns["end"][rows]
        beside = np.concatenate(([False], (start[1:] == start[:-1]) & (end[1:] == end[:-1]), [False]))
        rows = rows[beside[1:] | beside[:-1]]
        compared = ("start", "end", "name", "stream", "device", "correlation")
        records = np.column_stack([columns[column][rows] for column in compared])
        order = np.lexsort(records.T[::-1])
        same = np.zeros(len(rows), dtype=bool)
        same[order[1:]] = (records[order[1:]] == records[order[:-1]]).all(axis=1)
        if same.any():
            self.warnings["duplicate_record"] += int(same.sum())
            keep[rows[same]] = False
        return keep


def _numbers(known: Strings, found: Iterable[Any]) -> NDArray[np.int32]:
    return np.array(list(map(known.__getitem__, found)), dtype=np.int32)


def _are_objects(texts: Sequence[msgspec.Raw]) -> bool:
    """Are all arguments JSON objects, null or absent? Told by their first characters, for the text is valid JSON."""
    sizes = np.array(list(map(len, texts)), dtype=np.int64)
    starts = (np.cumsum(sizes) - sizes)[sizes > 0]
    if not len(starts):
        return True
    first = np.frombuffer(b"".join(texts), np.uint8)[starts]
    return bool(((first == _BRACE) | (first == _NULL)).all())


def _decoded(texts: Sequence[msgspec.Raw]) -> list[Args] | None:
    """Arguments, decoded in one go since that is fast; None if some cannot be."""
    if not all(texts):
        texts = [text or _NULL_TEXT for text in texts]
    try:
        found = _LIST_DECODER.decode(b"".join((b"[", b",".join(texts), b"]")))
    except _FAULTS:
        return None
    return [args or _NO_ARGS for args in found]


def _ids(
    events: Sequence[Event], kind: NDArray[np.int8], rows: NDArray[np.intp], found: Sequence[Args]
) -> NDArray[np.int64]:
    """Stream, device, correlation and external id, shape (4, events), from the arguments of some rows."""
    ids = np.full((4, len(events)), -1, dtype=np.int64)
    device_side = (kind[rows] == Class.KERNEL) | (kind[rows] == Class.COPY)
    lanes = rows[device_side]
    args = list(compress(found, device_side.tolist()))
    streams = [events[row].tid if a.stream is None else a.stream for row, a in zip(lanes.tolist(), args, strict=True)]
    ids[0, lanes] = integers(streams)
    ids[1, lanes] = integers([a.device for a in args])
    ids[2, rows] = integers([a.correlation for a in found])
    ids[3, rows] = integers([a.external_of_2021 if a.external is None else a.external for a in found])
    return ids
