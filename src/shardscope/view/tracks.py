"""Our own tracks of one rank: steps, attribution, communication; and the arrows between ranks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.analysis import Analysis
from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import EMPTY, subtract, total
from shardscope.attribution.match import Matched
from shardscope.attribution.partition import partition
from shardscope.trace.table import Strings
from shardscope.view.proto import annotations
from shardscope.view.writer import flow_in, flow_out
from shardscope.vocabulary import Kind

__all__ = ["ATTRIBUTION", "COMMUNICATION", "KINDS", "STEPS", "OwnTracks", "own_tracks"]

STEPS, ATTRIBUTION, COMMUNICATION = "steps", "attribution", "communication"
KINDS = (STEPS, ATTRIBUTION, COMMUNICATION)


@dataclass
class OwnTracks:
    """Slices of shape (n,): kind (number in KINDS), start, end (ns on the rank's clock), name and details (numbers
    in the lists). Flows by row: those that leave at its start, and those that arrive at its end. `device`: whose steps
    these are, where a process ran kernels on several and this is not the one that was compared with other ranks.
    """

    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    detail: NDArray[np.int64]
    names: list[str]
    details: list[bytes]
    start_flows: dict[int, bytes]
    end_flows: dict[int, bytes]
    device: int | None


@dataclass
class _Builder:
    device: int | None
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    names: Strings = field(default_factory=Strings)
    details: Strings = field(default_factory=Strings)
    start_flows: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))
    end_flows: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))

    def add(self, kind: str, start: int, end: int, name: str, detail: bytes) -> int:
        row = len(self.rows)
        self.rows.append((KINDS.index(kind), start, end, self.names[name], self.details[detail]))
        return row

    def finish(self) -> OwnTracks:
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 5)
        self.rows.clear()
        kind, start, end, name, detail = (column.copy() for column in table.T)
        return OwnTracks(
            kind, start, end, name, detail, self.names.texts, self.details.texts, dict(self.start_flows),
            dict(self.end_flows), self.device,
        )  # fmt: skip


def own_tracks(analysis: Analysis) -> tuple[dict[int, OwnTracks], int]:
    """The tracks of every rank by its key in the analysis, and how many arrows they hold.

    Only rows are kept, so the timelines behind the analysis can go.
    """
    builders = {key: _Builder(view.device_index if view.secondary else None) for key, view in analysis.views.items()}
    offsets = {int(rank): offset for rank, offset in analysis.result.clock.offset_ns.items()}
    matched = {id(item): match for match in analysis.matches for item in match.members.values() if not match.broken}
    numbers = {id(match): number for number, match in enumerate(analysis.matches)}
    anchors: dict[int, tuple[int, int]] = {}  # id of a communication → (key, row of the transfer that arrows tie to)
    for key, view in analysis.views.items():
        builder = builders[key]
        for step in view.steps:
            summary = step.number == analysis.result.summary_step
            detail = annotations({"step": step.number, "summary_step": summary})
            builder.add(STEPS, step.start, step.end, _step_name(step.number, summary), detail)
            for piece in partition(analysis.parts[key, step.number]):
                builder.add(ATTRIBUTION, piece.start, piece.end, piece.category, detail)
        for item in view.communications:
            match = matched.get(id(item))
            detail = annotations(_details(item, match, key, numbers.get(id(match))))
            begin = None if match is None else transfer_start(match, offsets)
            begin = None if begin is None else begin + offsets.get(key, 0)
            row = _communication(builder, item, detail, begin)
            if row is not None:
                anchors[id(item)] = key, row
    arrows = 0
    for source, target in _arrows(analysis.matches, offsets):
        if id(source) in anchors and id(target) in anchors:
            arrows += _draw(arrows + 1, builders, anchors[id(source)], anchors[id(target)], offsets)
    return {key: builder.finish() for key, builder in builders.items()}, arrows


def transfer_start(match: Matched, offsets: Mapping[int, int]) -> int:
    """The instant (ns, common clock) from which data can move: when the last rank, or the later side, is there."""
    return max(_ready(item) - offsets.get(rank, 0) for rank, item in match.members.items())


def _ready(item: Communication) -> int:
    return item.posted if item.posted is not None else item.arrival


def _communication(builder: _Builder, item: Communication, detail: bytes, begin: int | None) -> int | None:
    """Waiting and the rest as slices, cut at `begin`; returns the row for arrows: the first from there on,
    else the last (a send may be over before its receive is posted)."""
    name = _name(item)
    waits = item.waits if item.waits is not None else EMPTY
    for start, end in waits.tolist():
        builder.add(COMMUNICATION, start, end, f"{name}:wait", detail)
    moving = name if item.waits is None else f"{name}:transfer"  # the words of the attribution
    anchor = last = None
    for start, end in subtract(item.busy, waits).tolist():
        for left, right in (
            [(start, end)] if begin is None or not start < begin < end else [(start, begin), (begin, end)]
        ):
            last = builder.add(COMMUNICATION, left, right, moving, detail)
            if anchor is None and begin is not None and left >= begin:
                anchor = last
    return anchor if anchor is not None else last


def _step_name(number: int | None, summary: bool) -> str:
    name = "all of the trace" if number is None else f"step {number}"
    return f"{name} (shown in the summary)" if summary else name


def _name(item: Communication) -> str:
    if item.direction is None or item.peer is None:
        return str(item.kind)
    return f"{item.direction} {'to' if item.direction == 'send' else 'from'} rank {item.peer}"


def _details(item: Communication, match: Matched | None, rank: int, number: int | None) -> Mapping[str, object]:
    last = match.last_rank if match is not None else None
    return {
        "number": number,
        "kind": item.kind,
        "axis": item.axis,
        "group": "-".join(map(str, item.group)) if item.group else item.group_name or None,
        "operation": item.name or None,
        "kind_known_from": item.evidence,
        "bytes": item.bytes,
        "wait_ns": total(item.waits) if item.waits is not None else None,
        "transfer_ns": match.transfer if match is not None else None,
        "split_is_a_bound": item.bounds or None,
        "last_to_arrive": None if last is None else "this rank" if last == rank else f"rank {last}",
    }


def _arrows(matches: Sequence[Matched], offsets: Mapping[int, int]) -> Iterator[tuple[Communication, Communication]]:
    """From every send to its receive; from the last rank to arrive at a collective, of a broadcast its root, to the
    others, which it lets go."""
    for match in matches:
        if match.broken or len(match.members) < 2:
            continue
        if match.pair:
            order = sorted(match.members.values(), key=lambda item: item.direction != "send")
        else:
            latest = max(match.members, key=lambda rank: match.members[rank].arrival - offsets.get(rank, 0))
            first = match.members[latest]
            if first.kind is Kind.BROADCAST and first.root in match.members:
                first = match.members[first.root]
            order = [first, *(item for item in match.members.values() if item is not first)]
        for target in order[1:]:
            yield order[0], target


def _draw(
    number: int,
    builders: Mapping[int, _Builder],
    source: tuple[int, int],
    target: tuple[int, int],
    offsets: Mapping[int, int],
) -> int:
    """Tie an arrow to two slices; 0 if it would run back in time.

    It is written where the source starts and where the target ends, and Perfetto takes it from the slice that starts
    first: of equal ones, from the one it read first.
    """
    (out_key, out_row), (in_key, in_row) = source, target
    leaves = builders[out_key].rows[out_row][1] - offsets.get(out_key, 0)
    _, start, end, _, _ = builders[in_key].rows[in_row]
    if not leaves <= start - offsets.get(in_key, 0) < end - offsets.get(in_key, 0):
        return 0
    builders[out_key].start_flows[out_row] += flow_out(number)
    builders[in_key].end_flows[in_row] += flow_in(number)
    return 1
