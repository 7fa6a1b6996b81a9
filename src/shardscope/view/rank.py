"""Writes one rank as a process: our own tracks, its memory, its threads and its device streams."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardscope.view import proto
from shardscope.view.events import Arrows, RankEvents, is_device, is_step
from shardscope.view.lanes import assign_lanes
from shardscope.view.tracks import COMMUNICATION, KINDS, OwnTracks
from shardscope.view.writer import (
    Counters,
    Sink,
    Slices,
    Spool,
    flow_in,
    flow_out,
    write_counters,
    write_names,
    write_slices,
)

__all__ = ["RankWriter"]

_ARROW_SPACE = 1 << 32  # arrows of one rank; those between ranks are numbered below
_COUNTERS = 90  # places between communication and the threads, for counters
_COMMUNICATION, _STEPS, _DEVICES = -1, -2, -3  # our tracks, beside the numbers of threads; devices count down
_RANK_TRACK = (
    "Steps as they are attributed (with a device, a step ends when the compute it launched ends), and below them every "
    "instant booked once: the lengths add up to the ledger's row, to the nanosecond."
)
_COMMUNICATION_TRACK = (
    "Collectives and messages, with waiting apart. Arrows lead from sends to receives, and from the rank that comes "
    "last to a collective to those that wait for it."
)
_CLIMB = 64  # how many slices to look back for the one that encloses an arrow's end
_DEVICE_TYPES = {0: "CPU", 1: "CUDA", 6: "HIP", 12: "XPU", 13: "MPS", 20: "PrivateUse1"}


@dataclass
class RankWriter:
    """Writes to `out` as process number `place` + 1, named `name`; `sort_name` is shown and puts ranks in order.

    `first_uuid`: the next free track number. `distance` is added to the files' times, `own_distance` to attribution's.
    After `write`, the counts say what went out.
    """

    out: Sink
    place: int
    name: str
    sort_name: str
    first_uuid: int
    distance: int
    own_distance: int
    slices: int = 0
    own_slices: int = 0
    arrows: int = 0
    counter_values: int = 0
    next_uuid: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def write(self, events: RankEvents, own: Sequence[OwnTracks], spool: Spool) -> None:
        """Everything of one rank. `own`: per device, first the one that is compared with other ranks; empty: none."""
        self.next_uuid = self.first_uuid
        sequence = self.place + 1
        # Perfetto's page orders processes by their number of slices, but other top tracks by name. Ranks must stand in
        # their order: each is a top track that holds all others, and a process only in the table of processes.
        self.out.write(proto.track(self._uuid(), self.name, process=sequence))
        parent = self._uuid()
        self.out.write(proto.track(parent, self.sort_name, description=_RANK_TRACK if own else ""))
        self.left_out = events.left_out.copy()
        self._drop_before_zero(events)
        table = _raw_table(events, self.distance)
        order = np.lexsort((-table.end, table.start))
        _permute(table, order)
        self.arrows = self._trace_arrows(table, events.arrows)
        self.slices = len(table)
        devices: list[tuple[int, str, str]] = []
        for tracks in own:
            steps = _STEPS if tracks.device is None else _DEVICES - len(devices)
            if tracks.device is not None:
                devices.append((steps, f"steps · device {tracks.device}", _RANK_TRACK))
            table = _with_own(table, tracks, events, spool, self.own_distance, steps)
        self.own_slices = len(table) - self.slices
        self._declare(table, [(_COMMUNICATION, COMMUNICATION, _COMMUNICATION_TRACK), *devices], events, parent)
        write_names(self.out, sequence, events.names, events.categories)
        write_slices(self.out, sequence, table, spool.view())
        self._memory(events, sequence, parent, 1 + len(devices))

    def _uuid(self) -> int:
        number = self.next_uuid
        self.next_uuid += 1
        return number

    def _drop_before_zero(self, events: RankEvents) -> None:
        """Perfetto knows no negative times; only events more than a day before the rest can have one."""
        early = events.start + self.distance < 0
        if early.any():
            self.left_out["X a day before the others"] += int(early.sum())
            for name in ("start", "end", "name", "category", "thread", "at", "length"):
                setattr(events, name, getattr(events, name)[~early])

    def _trace_arrows(self, table: Slices, arrows: Arrows) -> int:
        """Tie the trace's own arrows to slices; returns how many have both ends and run forward in time."""
        rows = _enclosing(table, arrows.thread, arrows.time + self.distance)
        sources: dict[int, int] = {}
        drawn = 0
        ends = zip(arrows.key.tolist(), arrows.arrives.tolist(), rows.tolist(), strict=True)
        targets = []
        for key, arrives, row in ends:
            if arrives:
                targets.append((key, row))
            else:
                sources.setdefault(key, row)
        for key, row in targets:
            source = sources.get(key, -1)
            if source < 0 or row < 0 or source >= row:  # rows are in order of time
                continue
            drawn += 1
            number = (self.place + 1) * _ARROW_SPACE + drawn
            table.start_flows[source] = table.start_flows.get(source, b"") + flow_out(number)
            table.start_flows[row] = table.start_flows.get(row, b"") + flow_in(number)
        return drawn

    def _declare(self, table: Slices, own: list[tuple[int, str, str]], events: RankEvents, parent: int) -> None:
        """Give every lane of every track its number, and put it into the table."""
        result = np.full(len(table), parent, dtype=np.int64)
        tracks = [*own, *_thread_order(events)]
        by_track = np.argsort(table.track, kind="stable")
        present, begins = np.unique(table.track[by_track], return_index=True)
        rows_of = dict(zip(present.tolist(), np.split(by_track, begins[1:]), strict=True))
        for place, (track, name, description) in enumerate(tracks):
            rows = rows_of.get(track)
            if rows is None:
                continue
            lanes = assign_lanes(table.start[rows], table.end[rows])
            uuids = np.array([self._uuid() for _ in range(int(lanes.max()) + 1)], dtype=np.int64)
            order = place if place < len(own) else place + _COUNTERS
            for uuid in uuids.tolist():  # the page shows lanes as rows of one track
                self.out.write(
                    proto.track(
                        uuid, name, parent=parent, order=order, merge_key=f"{parent}.{place}", description=description
                    )
                )
            result[rows] = uuids[lanes]
        table.track = result

    def _memory(self, events: RankEvents, sequence: int, parent: int, first: int) -> None:
        for place, ((kind, number), (time, value)) in enumerate(sorted(events.memory.items()), first):
            device = _DEVICE_TYPES.get(kind, f"device type {kind}") + (f" {number}" if number >= 0 else "")
            uuid = self._uuid()
            name = f"memory allocated · {device}"
            self.out.write(proto.track(uuid, name, parent=parent, order=place, counts_bytes=True))
            time = time + self.distance
            kept = time >= 0
            track = np.full(int(kept.sum()), uuid, dtype=np.int64)
            write_counters(self.out, sequence, Counters(track, time[kept], value[kept]))
            self.counter_values += len(track)


def _raw_table(events: RankEvents, distance: int) -> Slices:
    return Slices(
        events.thread, events.start + distance, events.end + distance, events.name, events.category, events.at,
        events.length,
    )  # fmt: skip


def _permute(table: Slices, order: NDArray[np.intp]) -> None:
    for name in ("track", "start", "end", "name", "category", "at", "length"):
        setattr(table, name, getattr(table, name)[order])


def _with_own(table: Slices, own: OwnTracks, events: RankEvents, spool: Spool, distance: int, steps: int) -> Slices:
    """The table with our own slices, sorted again: a step before the pieces of its own attribution."""
    details_at = spool.add(own.details)
    details_length = np.fromiter(map(len, own.details), np.int64, len(own.details))
    codes = np.array([events.names[name] for name in own.names], dtype=np.int64)
    kinds = np.array([events.categories[f"shardscope:{kind}"] for kind in KINDS], dtype=np.int64)
    columns = {
        "track": np.where(own.kind == KINDS.index(COMMUNICATION), _COMMUNICATION, steps),
        "start": own.start + distance,
        "end": own.end + distance,
        "name": codes[own.name] if len(codes) else own.name,
        "category": kinds[own.kind],
        "at": details_at[own.detail] if len(own.details) else own.detail,
        "length": details_length[own.detail] if len(own.details) else own.detail,
    }
    raw = len(table)
    track, start, end, name, category, at, length = (
        np.concatenate((getattr(table, column), values)) for column, values in columns.items()
    )
    joined = Slices(track, start, end, name, category, at, length)
    order = np.lexsort((-joined.end, joined.start))
    _permute(joined, order)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    joined.start_flows = {int(place[row]): flows for row, flows in table.start_flows.items()}
    joined.start_flows |= {int(place[raw + row]): flows for row, flows in own.start_flows.items()}
    joined.end_flows = {int(place[row]): flows for row, flows in table.end_flows.items()}
    joined.end_flows |= {int(place[raw + row]): flows for row, flows in own.end_flows.items()}
    return joined


def _enclosing(table: Slices, threads: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """The innermost slice on a thread at a time, -1 for none. Rows are sorted by start, longest first."""
    found = np.full(len(threads), -1, dtype=np.int64)
    for thread in np.unique(threads).tolist():
        rows = np.flatnonzero(table.track == thread)
        mine = np.flatnonzero(threads == thread)
        if not len(rows):
            continue
        end = table.end[rows]
        place = np.searchsorted(table.start[rows], times[mine], side="right") - 1
        for _ in range(_CLIMB):
            open_ = (place >= 0) & (end[place] < times[mine])
            if not open_.any():
                break
            place[open_] -= 1
        good = (place >= 0) & (end[place] >= times[mine])
        found[mine[good]] = rows[place[good]]
    return found


def _thread_order(events: RankEvents) -> Iterator[tuple[int, str, str]]:
    """Threads as they are shown: the one that runs the steps, other host threads, streams, what is no thread."""
    if not len(events.start):
        return
    count = len(events.threads)
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, events.thread, events.start)
    device_codes = [code for code in range(len(events.categories.texts)) if is_device(events.categories, code)]
    step_codes = [code for code, name in enumerate(events.names.texts) if is_step(name)]
    on_device = np.zeros(count, dtype=bool)
    on_device[events.thread[np.isin(events.category, device_codes)]] = True
    steps = np.zeros(count, dtype=bool)
    steps[events.thread[np.isin(events.name, step_codes)]] = True
    keys = []
    for code, (pid, tid) in enumerate(events.threads):
        group = 3 if isinstance(pid, str) else 2 if on_device[code] else 0 if steps[code] else 1
        keys.append((group, str(pid).rjust(12) if group == 2 else "", str(tid).rjust(12) if group == 2 else "",
                     int(first[code]), code))  # fmt: skip
    for group, _, _, _, code in sorted(keys):
        pid, tid = events.threads[code]
        name = events.thread_names.get((pid, tid)) or (f"stream {tid}" if group == 2 else f"thread {tid}")
        if group == 2:
            name = f"{events.process_labels.get(pid) or f'device {pid}'} · {name}"
        yield code, str(tid) if group == 3 else name, ""
