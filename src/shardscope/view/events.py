"""Everything timed in the trace files of one rank, with its details: more than attribution keeps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardscope.errors import DamagedTrace
from shardscope.trace.events import Class, Event, class_of
from shardscope.trace.numbers import ABSENT, nanoseconds
from shardscope.trace.stream import EventStream
from shardscope.trace.table import Strings, integer
from shardscope.view.proto import json_annotation
from shardscope.view.writer import Spool

__all__ = ["Arrows", "RankEvents", "is_device", "is_step", "read_events"]

_STEP = "ProfilerStep"
_ARROWS = ("s", "t", "f")
_TIME = 3  # its column in rows of arrows and of memory
_NONE: NDArray[np.int64] = np.empty((0, 4), dtype=np.int64)


class _Event(Event, gc=False):
    """With what tells the ends of an arrow."""

    id: Any = None


class _Memory(msgspec.Struct, gc=False):
    total: Any = msgspec.field(default=None, name="Total Allocated")
    kind: Any = msgspec.field(default=None, name="Device Type")
    number: Any = msgspec.field(default=None, name="Device Id")


class _Label(msgspec.Struct, gc=False):
    name: Any = None
    labels: Any = None


_MEMORY = msgspec.json.Decoder(_Memory)
_LABEL = msgspec.json.Decoder(_Label)


@dataclass
class Arrows:
    """Ends of the arrows that the trace itself draws, such as from a launch to its kernel. Columns of shape (n,): key
    (equal for the ends of one arrow), arrives (0 or 1), thread, time.
    """

    key: NDArray[np.int64]
    arrives: NDArray[np.int64]
    thread: NDArray[np.int64]
    time: NDArray[np.int64]


@dataclass
class RankEvents:
    """Slices in the order of the files. Columns of shape (n,): start, end (ns after the base of the first file), name,
    category, thread (numbers in the lists below), at, length (details in the spool).
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    category: NDArray[np.int64]
    thread: NDArray[np.int64]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    names: Strings
    categories: Strings
    threads: list[tuple[Any, Any]]
    thread_names: dict[tuple[Any, Any], str]
    process_labels: dict[Any, str]
    arrows: Arrows
    memory: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]  # (type, device) → times, bytes
    left_out: Counter[str]  # events that a merged trace does not show, by phase


@dataclass
class _Reader:
    spool: Spool
    names: Strings = field(default_factory=Strings)
    categories: Strings = field(default_factory=Strings)
    threads: Strings = field(default_factory=Strings)
    columns: list[tuple[NDArray[np.int64], ...]] = field(default_factory=list)
    thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    process_labels: dict[Any, str] = field(default_factory=dict)
    arrows: list[NDArray[np.int64]] = field(default_factory=list)  # rows of key, arrives, thread, time
    memory: list[NDArray[np.int64]] = field(default_factory=list)  # rows of device type, device, bytes, time
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, batch: list[_Event]) -> None:
        slices: list[_Event] = []
        others: list[_Event] = []
        for event in batch:
            (slices if event.ph == "X" else others).append(event)
        if slices:
            self._slices(slices)
        self._others(others)

    def _slices(self, events: list[_Event]) -> None:
        start = nanoseconds([event.ts for event in events])
        duration = nanoseconds([event.dur for event in events])
        known = start != ABSENT
        if not known.all():
            self.left_out["X without a time"] += int((~known).sum())
            events = [event for event, use in zip(events, known, strict=True) if use]
            start, duration = start[known], duration[known]
        duration = np.maximum(duration, 0)  # never ended, or negative: no length, as attribution reads them
        count = len(events)
        details = [json_annotation(bytes(event.args)) if len(event.args) > 2 else b"" for event in events]
        at = self.spool.add(details)
        self.columns.append((
            start, start + duration,
            np.fromiter((self.names[_text(event.name)] for event in events), np.int64, count),
            np.fromiter((self.categories[event.cat or ""] for event in events), np.int64, count),
            np.fromiter((self.threads[event.pid, event.tid] for event in events), np.int64, count),
            at, np.fromiter(map(len, details), np.int64, count),
        ))  # fmt: skip

    def _others(self, events: list[_Event]) -> None:
        times = nanoseconds([event.ts for event in events]).tolist()
        arrows: list[tuple[int, int, int, int]] = []
        memory: list[tuple[int, int, int, int]] = []
        for event, time in zip(events, times, strict=True):
            if event.ph == "M":
                self._label(event)
            elif time == ABSENT:
                self.left_out[f"{event.ph} without a time"] += 1
            elif event.ph in _ARROWS and isinstance(event.id, str | int | float):
                # The hash stands for the key: 64 bits, so two of a million keys meet once in 40 million traces.
                key, thread = hash((event.cat, event.name, event.id)), self.threads[event.pid, event.tid]
                arrows.append((key, int(event.ph == "f"), thread, time))
            elif event.ph == "i" and event.name == "[memory]":
                memory += _memory(event, time)
            elif event.ph != "i":
                self.left_out[str(event.ph)] += 1
        for columns, rows in ((self.arrows, arrows), (self.memory, memory)):
            if rows:
                columns.append(np.array(rows, dtype=np.int64))

    def _label(self, event: _Event) -> None:
        try:
            found = _LABEL.decode(event.args)
        except msgspec.MsgspecError:
            return
        if event.name == "thread_name" and found.name is not None:
            # Of several names the first is the thread's own; the last repeats the process's.
            self.thread_names.setdefault((event.pid, event.tid), str(found.name).strip())
        elif event.name == "process_labels" and found.labels is not None:
            self.process_labels[event.pid] = str(found.labels).strip()

    def shift(self, before: tuple[int, int, int], distance: int) -> None:
        """Move what came after `before` (numbers of batches) to the clock of the first file."""
        if not distance:
            return
        for columns in self.columns[before[0] :]:
            columns[0][:] += distance
            columns[1][:] += distance
        for rows in self.arrows[before[1] :] + self.memory[before[2] :]:
            rows[:, _TIME] += distance

    def finish(self) -> RankEvents:
        columns = [np.concatenate(parts) for parts in zip(*self.columns, strict=True)]
        memory: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        values = np.concatenate(self.memory) if self.memory else _NONE
        for kind, number in np.unique(values[:, :2], axis=0).tolist():
            rows = values[(values[:, 0] == kind) & (values[:, 1] == number)]
            rows = rows[np.argsort(rows[:, _TIME], kind="stable")]
            memory[kind, number] = rows[:, _TIME], rows[:, 2]
        key, arrives, thread, time = (np.concatenate(self.arrows) if self.arrows else _NONE).T
        start, end, name, category, of, at, length = columns or [np.empty(0, np.int64)] * 7
        return RankEvents(
            start, end, name, category, of, at, length, self.names, self.categories, self.threads.texts,
            self.thread_names, self.process_labels, Arrows(key, arrives, thread, time), memory, self.left_out,
        )  # fmt: skip


def _memory(event: _Event, time: int) -> Iterator[tuple[int, int, int, int]]:
    """Device type, device, bytes allocated after the event, time."""
    try:
        found = _MEMORY.decode(event.args)
    except msgspec.MsgspecError:
        return
    total = integer(found.total)
    if total >= 0:
        yield integer(found.kind), integer(found.number), total, time


def read_events(files: Sequence[Path], spool: Spool, *, salvage: bool = False) -> RankEvents:
    """Read the files of one rank (several profiling cycles: several files), each in bounded memory.

    Raises DamagedTrace when part of a file is lost and it is not to be salvaged.
    """
    reader = _Reader(spool)
    first_base: int | None = None
    for path in files:
        before = (len(reader.columns), len(reader.arrows), len(reader.memory))
        stream = EventStream(path, _Event)
        for batch in stream:
            reader.add(batch)
        if stream.cut and not salvage:
            raise DamagedTrace(f"{path}: {stream.cut}; write the trace again or use --salvage for what is there")
        base = integer(stream.metadata.get("baseTimeNanoseconds"))
        base = max(base, 0)
        first_base = base if first_base is None else first_base
        reader.shift(before, base - first_base)
    return reader.finish()


def is_device(categories: Strings, code: int) -> bool:
    """Does a category of slices say that they ran on a device?"""
    return class_of(categories.texts[code]) in (Class.KERNEL, Class.COPY)


def is_step(name: str) -> bool:
    """Is this the profiler's mark of a step?"""
    return name.startswith(_STEP)


def _text(name: str | float | None) -> str:
    return name if type(name) is str else str(name)
