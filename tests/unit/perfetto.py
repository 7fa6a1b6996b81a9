"""Reads Perfetto traces back, by the wire format alone and sharing no code with what writes them."""

import gzip
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Track:
    name: str
    parent: int | None = None
    order: int = 0
    merge_key: str | None = None
    process: tuple[int, str] | None = None
    is_counter: bool = False


@dataclass
class Slice:
    track: int
    name: str
    category: str
    start: int
    end: int | None = None
    depth: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    flows_out: list[int] = field(default_factory=list)
    flows_in: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        assert self.end is not None
        return self.end - self.start


@dataclass
class Trace:
    tracks: dict[int, Track] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def of(self, category: str) -> list[Slice]:
        return [item for item in self.slices if item.category == category]

    def root(self, track: int) -> str:
        parent = self.tracks[track].parent
        return self.tracks[track].name if parent is None else self.root(parent)


def read_perfetto(path: Path) -> Trace:
    """Decode the trace as Perfetto does: events sorted by time, those of one instant in their order in the file."""
    trace = Trace()
    events: list[tuple[int, dict[int, list[Any]], int]] = []
    strings: dict[tuple[int, int, int], str] = {}
    for number, packet in fields(gzip.decompress(path.read_bytes())):
        assert number == 1
        content = grouped(packet)
        sequence = content.get(10, [0])[0]
        for interned in content.get(12, []):
            for kind, entry in fields(interned):
                parts = grouped(entry)
                strings[sequence, kind, parts[1][0]] = parts[2][0].decode()
        for descriptor in content.get(60, []):
            _add_track(trace, grouped(descriptor))
        for event in content.get(11, []):
            events.append((content[8][0], grouped(event), sequence))
    stacks: dict[int, list[Slice]] = defaultdict(list)
    for time, event, sequence in sorted(events, key=lambda entry: entry[0]):
        _apply(trace, stacks, time, event, sequence, strings)
    assert not any(stacks.values()), "every slice that begins also ends"
    return trace


def _add_track(trace: Trace, parts: dict[int, list[Any]]) -> None:
    uuid = parts[1][0]
    assert uuid not in trace.tracks, "track numbers are unique"
    process = grouped(parts[3][0]) if 3 in parts else None
    trace.tracks[uuid] = Track(
        parts[2][0].decode(), parts.get(5, [None])[0], parts.get(12, [0])[0],
        parts[16][0].decode() if 16 in parts else None,
        (process[1][0], process[6][0].decode()) if process else None, 8 in parts,
    )  # fmt: skip


def _apply(
    trace: Trace,
    stacks: dict[int, list[Slice]],
    time: int,
    event: dict[int, list[Any]],
    sequence: int,
    strings: dict[tuple[int, int, int], str],
) -> None:
    kind, track = event[9][0], event[11][0]
    assert track in trace.tracks, "a track is declared"
    stack = stacks[track]
    if kind == 4:
        trace.counters[track].append((time, event[30][0]))
        return
    if kind == 1:
        name, category = strings[sequence, 2, event[10][0]], strings[sequence, 1, event[3][0]]
        item = Slice(track, name, category, time, depth=len(stack), details=_details(event.get(4, [])))
        stack.append(item)
        trace.slices.append(item)
    else:
        assert kind == 2
        item = stack.pop()
        item.end = time
        assert not stack or stack[-1].start <= item.start
    item.flows_out += [struct.unpack("<Q", raw)[0] for raw in event.get(47, [])]
    item.flows_in += [struct.unpack("<Q", raw)[0] for raw in event.get(48, [])]


def _details(annotations: list[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for annotation in annotations:
        parts = grouped(annotation)
        name = parts.pop(10)[0].decode()
        ((number, (value,)),) = parts.items()
        if number == 2:
            value = bool(value)
        elif number == 5:
            value = struct.unpack("<d", value)[0]
        elif number in (6, 9):
            value = value.decode()
        found[name] = value
    return found


def grouped(message: bytes) -> dict[int, list[Any]]:
    """Field number → values."""
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields(message):
        found[number].append(value)
    return dict(found)


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a message: integers, or bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind == 1:
            yield number, message[at : at + 8]
            at += 8
        else:
            assert kind == 2, kind
            size, at = _varint(message, at)
            assert at + size <= len(message)
            yield number, message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        assert shift <= 70
        if byte < 0x80:
            return value, at
