"""Events of a rank with an accelerator: kernels compute or communicate, copies copy."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.communication import Communication
from shardscope.attribution.groups import Group
from shardscope.attribution.intervals import IntArray, covers, intersect, single, union
from shardscope.attribution.kinds import Patterns, kind_of_operation
from shardscope.attribution.marks import loader_spans, optimizer_spans
from shardscope.attribution.sizes import metadata_bytes
from shardscope.attribution.steps import LAUNCH_UNKNOWN, DeviceWork, device_windows
from shardscope.attribution.view import Launches, RankView
from shardscope.trace.events import Args, Class
from shardscope.trace.table import Timeline, integer
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["fill_device_view", "has_device_work"]

_DEVICES_APART = 1_000_003  # more than any stream number
_NESTED = 8  # operations that state one collective are nested at most this deep
_OPERATIONS = ("record_param_comms", "nccl:", "rccl:", "xccl:", "c10d::")


def has_device_work(table: Timeline) -> bool:
    """Does the trace hold kernels or device copies?"""
    return bool(((table.kind == Class.KERNEL) | (table.kind == Class.COPY)).any())


def fill_device_view(view: RankView, patterns: Patterns) -> None:
    """Fill compute, copies, communication and step windows of a rank with device records."""
    table = view.timeline
    rows = np.flatnonzero(_on_device(view))
    start, end = table.start[rows], table.end[rows].copy()
    lanes = _lanes(table, rows)
    _clip_overflows(view, rows, lanes, start, end)
    kernel = table.kind[rows] == Class.KERNEL
    launch, cause = _launches(table, rows)
    operations = _Operations(table, launch, cause)
    communications: dict[int, Communication] = {}
    claimed = _claims(table, rows[kernel], patterns)
    stating = np.zeros(len(table), dtype=bool)
    stating[list(table.args)] = True
    for position in np.flatnonzero(kernel & (np.isin(table.name[rows], list(claimed)) | stating[rows])).tolist():
        row = int(rows[position])
        name_kind = claimed.get(int(table.name[row]))
        own = table.args.get(row)
        if name_kind is None and (own is None or own.collective is None):
            continue
        causes = operations.around(int(cause[position]), int(launch[position]), int(table.external[row]))
        communications[position] = _communication(
            view, row, int(start[position]), int(end[position]), name_kind, own, causes
        )
    communicating = np.zeros(len(rows), dtype=bool)
    communicating[list(communications)] = True
    work = DeviceWork(start, end, launch, lanes, kernel & ~communicating)
    device_windows(view, work)
    for position, item in communications.items():
        item.step = int(work.step[position]) if 0 <= work.step[position] < len(view.steps) else None
    view.compute = _set(start, end, work.compute)
    view.copies = _set(start, end, ~kernel)
    view.communications = sorted(communications.values(), key=lambda item: item.arrival)
    view.launches = Launches(start, end, lanes, launch)
    loading = loader_spans(table)
    if len(loading):
        view.loading = intersect(loading, _set(table.start, table.end, table.kind == Class.HOST_OP))
    view.micro_compute = _launched(view.mark_spans, work)
    view.optimizer_compute = _launched(optimizer_spans(view), work)


def _claims(table: Timeline, kernels: NDArray[np.intp], patterns: Patterns) -> dict[int, Kind]:
    """The kinds that the names of kernels claim, by the number of the name; computation is left out."""
    codes = np.flatnonzero(np.bincount(table.name[kernels])).tolist()
    return {code: kind for code in codes if (kind := patterns.kind(table.names[code])) is not None}


def _on_device(view: RankView) -> NDArray[np.bool_]:
    """Rows of the view's device; work that names no device is the busiest one's."""
    table = view.timeline
    mask: NDArray[np.bool_] = (table.kind == Class.KERNEL) | (table.kind == Class.COPY)
    if view.device_index is not None:
        mask &= (table.device == view.device_index) | ((table.device < 0) & (not view.secondary))
    return mask


def _lanes(table: Timeline, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """A number for each stream of each device; work that names no device is told apart by its row in the trace."""
    named = table.stream[rows] + _DEVICES_APART * (table.device[rows] + 1)
    return np.where(table.device[rows] >= 0, named, -1 - table.thread[rows])


def _set(start: NDArray[np.int64], end: NDArray[np.int64], mask: NDArray[np.bool_]) -> IntArray:
    return union(np.column_stack((start[mask], end[mask])))


def _clip_overflows(
    view: RankView, rows: NDArray[np.intp], lane: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> None:
    """Kernels of one stream run one after the other (a dependent one may start a little early), so one that outlasts
    its successor has a wrong duration: it ends where the successor starts. Nodes of one graph launch may overlap."""
    table = view.timeline
    kernels = table.kind[rows] == Class.KERNEL
    count = 0
    for stream in np.unique(lane[kernels]).tolist():
        mine = np.flatnonzero(kernels & (lane == stream))
        if len(mine) < 2:
            continue
        same_launch = (table.correlation[rows[mine[1:]]] == table.correlation[rows[mine[:-1]]]) & (
            table.correlation[rows[mine[1:]]] >= 0
        )
        wrong = (end[mine[:-1]] > end[mine[1:]]) & (start[mine[1:]] > start[mine[:-1]]) & ~same_launch
        bad = mine[:-1][wrong]
        end[bad] = start[mine[1:][wrong]]
        count += len(bad)
    if count:
        view.warn("duration_overflow", count, "kernels that outlast their successor on the stream end at its start")


def _launches(table: Timeline, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Host time and thread of the launch of each device row, by correlation; LAUNCH_UNKNOWN and -1 without a record."""
    calls = table.rows(Class.RUNTIME)
    calls = calls[table.correlation[calls] > 0]
    launch = np.full(len(rows), LAUNCH_UNKNOWN, dtype=np.int64)
    thread = np.full(len(rows), -1, dtype=np.int64)
    if len(calls):
        order = np.argsort(table.correlation[calls], kind="stable")
        calls = calls[order]
        ids = table.correlation[calls]
        place = np.minimum(np.searchsorted(ids, table.correlation[rows]), len(ids) - 1)
        found = (ids[place] == table.correlation[rows]) & (table.correlation[rows] > 0)
        launch[found] = table.start[calls[place[found]]]
        thread[found] = table.thread[calls[place[found]]]
    return launch, thread


class _Operations:
    """Host operations that state what they communicate, found by thread and time or by external id."""

    def __init__(self, table: Timeline, launch: NDArray[np.int64], cause: NDArray[np.int64]) -> None:
        self.table = table
        stating = np.array([name.startswith(_OPERATIONS) for name in table.names], dtype=bool)
        host = (table.kind == Class.HOST_OP) | (table.kind == Class.ANNOTATION)
        rows = np.flatnonzero(host & stating[table.name]) if len(stating) else np.empty(0, dtype=np.intp)
        self.by_thread: dict[int, tuple[list[int], list[int], list[int]]] = {}  # rows, starts, ends
        self.launches: dict[int, list[int]] = {}
        for thread in np.unique(table.thread[rows]).tolist():
            mine = rows[table.thread[rows] == thread]
            self.by_thread[thread] = mine.tolist(), table.start[mine].tolist(), table.end[mine].tolist()
            self.launches[thread] = np.sort(launch[cause == thread]).tolist()
        self.by_external: dict[int, list[int]] = {}
        for row in rows.tolist():
            if table.external[row] > 0:
                self.by_external.setdefault(int(table.external[row]), []).append(row)

    def around(self, thread: int, launch: int, external: int) -> list[int]:
        """Rows of the operations that enclose a launch, innermost first; else those with the external id."""
        if launch != LAUNCH_UNKNOWN and thread in self.by_thread:
            rows, starts, ends = self.by_thread[thread]
            high = bisect_right(starts, launch)
            found = [rows[at] for at in range(high - 1, max(0, high - _NESTED) - 1, -1) if ends[at] > launch]
            if found:
                return [*found, *self._coalesced(thread, high, found)]
        return self.by_external.get(external, []) if external > 0 else []

    def _coalesced(self, thread: int, high: int, found: list[int]) -> list[int]:
        """What a coalesced launch carries: the operations before it that launched nothing of their own, if they all
        state one kind."""
        if not any("coalesced" in (text := self._text(row)) and kind_of_operation(text) is None for row in found):
            return []
        rows, starts, ends = self.by_thread[thread]
        launches = self.launches[thread]
        inside: list[int] = []
        for at in range(high - 1, -1, -1):
            if rows[at] in found:
                continue
            if bisect_left(launches, starts[at]) < bisect_left(launches, ends[at]):
                break
            inside.append(rows[at])
        kinds = {kind_of_operation(self._text(row)) for row in inside}
        return inside[:1] if len(kinds) == 1 else []

    def _text(self, row: int) -> str:
        args = self.table.args.get(row)
        stated = args.collective if args is not None else None
        return self.table.names[self.table.name[row]] if stated is None else str(stated)


def _communication(
    view: RankView, row: int, start: int, end: int, name_kind: Kind | None, own: Args | None, causes: list[int]
) -> Communication:
    table = view.timeline
    kind, evidence, stated = _kind(table, name_kind, own, causes)
    sources = [args for args in (own, *map(table.args.get, causes)) if args is not None]
    group = next((found for args in sources if (found := view.groups.of(args)) is not None), None)
    item = Communication(
        kind, evidence, start, end, single(start, end), name=stated or table.names[table.name[row]],
        order=start, synchronising=kind not in (Kind.BROADCAST, Kind.OTHER) or "barrier" in stated.lower(),
    )  # fmt: skip
    if group is None:
        group = view.groups.only or Group(None, "", None, Axis.UNKNOWN)
    item.group, item.group_name, item.group_size, item.axis = group.ranks, group.name, group.size, group.axis
    for args in sources:
        _add_metadata(item, args)
        if (
            item.bytes is not None
            and item.sequence is not None
            and item.synchronising
            and item.kind is not Kind.SEND_RECEIVE
        ):
            break  # a farther source can add nothing
    return item


def _add_metadata(item: Communication, args: Args) -> None:
    """What an event's arguments say, nearest source first."""
    if item.bytes is None:
        item.bytes = metadata_bytes(args, item.kind)
    if item.sequence is None and (sequence := integer(args.sequence)) >= 0:
        item.sequence = sequence
    if item.comms_id is None and args.comms_id is not None:
        item.comms_id = str(args.comms_id)
    if item.root is None and (root := integer(args.root)) >= 0:
        item.root = root
    if item.kind is Kind.SEND_RECEIVE and item.direction is None:
        text = str(args.collective).lower()
        source, destination = integer(args.source), integer(args.destination)
        if "send" in text and "recv" not in text and destination >= 0:
            item.direction, item.peer = "send", destination
        elif "recv" in text and "send" not in text and source >= 0:
            item.direction, item.peer = "receive", source


def _kind(table: Timeline, name_kind: Kind | None, own: Args | None, causes: list[int]) -> tuple[Kind, Evidence, str]:
    """Kind, what told it, and the words that told it."""
    if own is not None and own.collective is not None:
        text = str(own.collective)
        found = kind_of_operation(text)
        if found is not None:
            return found, Evidence.METADATA, text
    for text in _statements(table, causes):
        found = kind_of_operation(text)
        if found is not None:
            return found, Evidence.OP, text
    if name_kind is not None and name_kind is not Kind.UNKNOWN:
        return name_kind, Evidence.NAME, ""
    return Kind.UNKNOWN, Evidence.UNKNOWN, ""


def _statements(table: Timeline, causes: list[int]) -> Iterator[str]:
    for row in causes:
        args = table.args.get(row)
        if args is not None and args.collective is not None:
            yield str(args.collective)
        name = table.names[table.name[row]]
        if name != "record_param_comms":
            yield name


def _launched(spans: IntArray, work: DeviceWork) -> IntArray:
    """Compute launched inside a set of host time."""
    return _set(work.start, work.end, work.compute & covers(spans, work.launch))
