"""Writes slices and counters as Perfetto packets, in order of time, a bounded number at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from shardscope.trace.table import Strings
from shardscope.view.proto import data, integer, padded, text, varint

__all__ = ["Counters", "Slices", "Spool", "flow_in", "flow_out", "write_counters", "write_names", "write_slices"]

_CHUNK = 1 << 14  # events whose packets are in memory at once
_CLEARED, _NEEDS = 1, 2  # sequence_flags
_BEGIN, _END, _COUNTER = 1, 2, 4
_SEQUENCE, _FLAGS, _INTERNED = 10, 13, 12
_CATEGORIES, _NAMES = 1, 2
_TIME_WIDTH, _LENGTH_WIDTH, _UUID_WIDTH, _NAME_WIDTH = 9, 4, 4, 4  # bytes of a padded number
_FLOW_OUT, _FLOW_IN = varint(47 << 3 | 1), varint(48 << 3 | 1)


class Sink(Protocol):
    """What packets are written to."""

    def write(self, content: bytes, /) -> object: ...


class Spool:
    """Encoded details of slices, on disk until their slice is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0

    def add(self, pieces: Sequence[bytes]) -> NDArray[np.int64]:
        """Append; returns where each piece begins. Shape (len(pieces),)."""
        lengths = np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces))
        begins = self.size + np.cumsum(lengths) - lengths
        self._file.write(b"".join(pieces))
        self.size += int(lengths.sum())
        return begins

    def view(self) -> memoryview:
        """All bytes; the operating system keeps in memory what it likes of them."""
        self._file.flush()
        return memoryview(np.memmap(self._file, np.uint8, "r")) if self.size else memoryview(b"")  # type: ignore[arg-type]


@dataclass
class Slices:
    """Slices of one rank. Arrays of shape (n,): track (uuid), start, end (ns), name and category (numbers of strings),
    `at` and `length` of the details in the spool. `start_flows`, `end_flows`: encoded arrows by row, tied to the event
    that begins a slice or to the one that ends it.
    """

    track: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    category: NDArray[np.int64]
    at: NDArray[np.int64]
    length: NDArray[np.int64]
    start_flows: dict[int, bytes] = field(default_factory=dict)
    end_flows: dict[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)


@dataclass
class Counters:
    """Values of counters over time. Arrays of shape (n,): track (uuid), time (ns), value (≥ 0)."""

    track: NDArray[np.int64]
    time: NDArray[np.int64]
    value: NDArray[np.int64]


def flow_out(number: int) -> bytes:
    """An arrow that leaves the event."""
    return _FLOW_OUT + number.to_bytes(8, "little")


def flow_in(number: int) -> bytes:
    """An arrow that ends at the event."""
    return _FLOW_IN + number.to_bytes(8, "little")


def write_names(out: Sink, sequence: int, names: Strings, categories: Strings) -> None:
    """The strings of a sequence, before its slices. String k gets number k + 1."""
    head = integer(_SEQUENCE, sequence)
    out.write(data(1, head + integer(_FLAGS, _CLEARED)))
    for what, strings in ((_NAMES, names), (_CATEGORIES, categories)):
        for first in range(0, len(strings.texts), _CHUNK):
            entries = enumerate(strings.texts[first : first + _CHUNK], first + 1)
            body = b"".join(data(what, integer(1, number) + text(2, str(string))) for number, string in entries)
            out.write(data(1, head + integer(_FLAGS, _NEEDS) + data(_INTERNED, body)))


def write_slices(out: Sink, sequence: int, slices: Slices, details: memoryview) -> None:
    """All slices as begin and end events in order of time."""
    count = len(slices)
    order = _event_order(slices.start, slices.end)
    for first in range(0, len(order), _CHUNK):
        events = order[first : first + _CHUNK]
        begins, ends = events[events < count], events[events >= count] - count
        packets = dict(zip(begins.tolist(), _begins(sequence, slices, begins, details), strict=True))
        tails = [slices.end_flows.get(row, b"") for row in ends.tolist()] if slices.end_flows else None
        endings = _packets(_END, sequence, slices.end[ends], slices.track[ends], (), tails)
        out.write(b"".join(packets[event] if event < count else next(endings) for event in events.tolist()))


def write_counters(out: Sink, sequence: int, counters: Counters) -> None:
    """All values of all counters."""
    tag = varint(30 << 3)
    for first in range(0, len(counters.time), _CHUNK):
        part = slice(first, first + _CHUNK)
        values = ((tag, counters.value[part], _TIME_WIDTH),)
        out.write(b"".join(_packets(_COUNTER, sequence, counters.time[part], counters.track[part], values, None)))


def _event_order(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Begin (row) and end (row + n) events so that every track closes what it opened, innermost first.

    Rows are sorted by start, longest first. At one instant: what began earlier ends, innermost first; then slices
    begin, outermost first, and those without length end at once. Perfetto keeps this order where times are equal.
    """
    count = len(start)
    row = np.arange(count, dtype=np.int64)
    instant = end == start
    time = np.concatenate((start, end))
    phase = np.concatenate((np.ones(count, dtype=np.int8), instant.astype(np.int8)))
    rank = np.concatenate((2 * row, np.where(instant, 2 * row + 1, -row)))
    return np.lexsort((rank, phase, time)).astype(np.int64)


def _begins(sequence: int, slices: Slices, rows: NDArray[np.int64], details: memoryview) -> Iterator[bytes]:
    tails: list[bytes] = []
    flows: Mapping[int, bytes] = slices.start_flows
    for row, at, length in zip(rows.tolist(), slices.at[rows].tolist(), slices.length[rows].tolist(), strict=True):
        tail = bytes(details[at : at + length]) if length else b""
        tails.append(tail + flows[row] if row in flows else tail)
    fields = ((b"\x50", slices.name[rows] + 1, _NAME_WIDTH), (b"\x18", slices.category[rows] + 1, _NAME_WIDTH))
    return _packets(_BEGIN, sequence, slices.start[rows], slices.track[rows], fields, tails)


def _packets(
    kind: int,
    sequence: int,
    time: NDArray[np.int64],
    track: NDArray[np.int64],
    fields: Iterable[tuple[bytes, NDArray[np.int64], int]],
    tails: list[bytes] | None,
) -> Iterator[bytes]:
    """One TracePacket per row: TrackEvent with `fields` (tag, values, width) and a tail of encoded fields."""
    count = len(time)
    tail_length = np.fromiter(map(len, tails), np.int64, count) if tails is not None else np.zeros(count, np.int64)
    event = [_constant(integer(9, kind), count), _constant(b"\x58", count), padded(track, _UUID_WIDTH)]
    for tag, values, width in fields:
        event += [_constant(tag, count), padded(values, width)]
    inner = sum(part.shape[1] for part in event)
    packet = [
        _constant(b"\x40", count), padded(time, _TIME_WIDTH),
        _constant(integer(_SEQUENCE, sequence) + integer(_FLAGS, _NEEDS), count),
        _constant(b"\x5a", count), padded(inner + tail_length, _LENGTH_WIDTH), *event,
    ]  # fmt: skip
    outer = sum(part.shape[1] for part in packet)
    rows = np.concatenate((_constant(b"\x0a", count), padded(outer + tail_length, _LENGTH_WIDTH), *packet), axis=1)
    width, content = rows.shape[1], rows.tobytes()
    for row in range(count):
        packed = content[row * width : (row + 1) * width]
        yield packed + tails[row] if tails is not None else packed


def _constant(content: bytes, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(content, np.uint8), (count, len(content)))
