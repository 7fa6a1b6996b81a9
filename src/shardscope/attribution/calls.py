"""Communication of a rank without a device: c10d calls, the gloo spans that carry them out, and waits."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardscope.attribution import gloo
from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import EMPTY, IntArray, clip, single, union
from shardscope.attribution.kinds import kind_of_operation
from shardscope.attribution.sizes import message_bytes
from shardscope.attribution.view import RankView
from shardscope.measure.record import CommunicationCall
from shardscope.trace.table import Timeline, integer
from shardscope.vocabulary import Evidence, Kind

__all__ = ["host_communications"]

_DIRECTIONS = {"c10d::send": "send", "c10d::recv_": "receive", "c10d::recv_any_source_": "receive"}
_SPAN_DIRECTIONS = {"gloo:send": "send", "gloo:recv": "receive"}
_ROOTS = {"c10d::broadcast_": 2, "c10d::reduce_": 3, "c10d::gather_": 3, "c10d::scatter_": 3}  # place in the inputs


@dataclass(frozen=True, slots=True)
class _Helper:
    """A functional operation that issues nothing itself: a wait or a wrapper."""

    thread: int
    start: int
    end: int
    sizes: frozenset[int]
    waits: bool


def host_communications(
    view: RankView,
    call_rows: NDArray[np.intp],
    span_rows: NDArray[np.intp],
    workers: set[int],
    activity: dict[int, IntArray],
    sidecar: Sequence[CommunicationCall] | None,
) -> None:
    """Fill `view.communications` from the rows of c10d calls and gloo spans.

    `activity`: per calling thread, the set of instants at which it runs an operator or a call. `sidecar`: what the run
    itself noted about each call, in order.
    """
    table = view.timeline
    calls, helpers = _calls(view, call_rows)
    if sidecar is not None:
        _apply_sidecar(view, calls, sidecar)
    elif (only := view.groups.only) is not None:
        for call in calls:
            call.group, call.group_name, call.axis = only.ranks, only.name, only.axis
            call.group_size = only.size
    _map_peers(calls)
    pool_spans: list[gloo.Span] = []
    own_spans: list[gloo.Span] = []
    for row in span_rows:
        span = gloo.Span(
            int(table.thread[row]), int(table.start[row]), int(table.end[row]), table.names[table.name[row]],
            gloo.sizes(table.args.get(int(row))), _element_type(table.args.get(int(row))),
        )  # fmt: skip
        (pool_spans if span.thread in workers else own_spans).append(span)
    queued = [call for call in calls if call.direction is None and call.name != "c10d::monitored_barrier_"]
    orphans = gloo.assign(queued, pool_spans)
    orphans += _point_to_point(calls, own_spans, activity)
    _attach_helpers(calls, helpers)
    calls += [_orphan(span, activity) for span in orphans]
    view.communications = sorted(calls, key=lambda item: item.order)
    for item in view.communications:
        item.step = view.step_at(item.arrival)
        if item.group_size is None and item.group is not None:
            item.group_size = len(item.group)
        if item.bytes is None:
            item.bytes = message_bytes(item)


def _calls(view: RankView, rows: NDArray[np.intp]) -> tuple[list[Communication], list[_Helper]]:
    """One Communication per c10d call, spanning the outermost enclosing call; waits and wrappers go to `helpers`."""
    table = view.timeline
    calls: list[Communication] = []
    helpers: list[_Helper] = []
    for thread in np.unique(table.thread[rows]):
        mine = [int(row) for row in rows[table.thread[rows] == thread]]
        index = 0
        while index < len(mine):
            outer = mine[index]
            start, end = int(table.start[outer]), int(table.end[outer])
            inner = [outer]
            index += 1
            while index < len(mine) and table.start[mine[index]] < end:
                inner.append(mine[index])
                index += 1
            named = [row for row in inner if table.names[table.name[row]].startswith("c10d::")]
            if not named:
                waits = "wait" in table.names[table.name[outer]]
                helpers.append(_Helper(int(thread), start, end, gloo.sizes(table.args.get(outer)), waits))
            for position, row in enumerate(named):
                # Several calls in one functional operation share its interval: each from its start to the next one's.
                left = start if position == 0 else int(table.start[row])
                right = end if position == len(named) - 1 else int(table.start[named[position + 1]])
                calls.append(_call(table, row, left, max(right, int(table.end[row]))))
    calls.sort(key=lambda call: call.order)
    return calls, helpers


def _call(table: Timeline, row: int, start: int, end: int) -> Communication:
    name = table.names[table.name[row]]
    args = table.args.get(row)
    kind = kind_of_operation(name)
    call = Communication(
        kind or Kind.UNKNOWN, Evidence.OP if kind else Evidence.UNKNOWN, int(table.start[row]), end,
        single(start, end), name=name, direction=_DIRECTIONS.get(name), thread=int(table.thread[row]),
        order=int(table.start[row]), call_end=end, dims=gloo.sizes(args), inside=single(start, end),
    )  # fmt: skip
    concrete = _concrete(args)
    if call.direction is not None and len(concrete) >= 4:
        call.peer, call.tag = integer(concrete[2]), integer(concrete[3])
    if name in _ROOTS:
        call.synchronising = False
        place = _ROOTS[name]
        if len(concrete) > place and (root := integer(concrete[place])) >= 0:
            call.root = root
    call.element_type = _element_type(args)
    return call


def _concrete(args: Any) -> list[Any]:
    try:
        value = msgspec.json.decode(args.concrete) if args is not None and len(args.concrete) else []
    except msgspec.MsgspecError:
        return []
    return value if isinstance(value, list) else []


def _element_type(args: Any) -> str:
    try:
        value = msgspec.json.decode(args.types) if args is not None and len(args.types) else []
    except msgspec.MsgspecError:
        return ""
    value = value if isinstance(value, list) else []
    return next((str(item) for item in value if item not in ("", "Scalar", "TensorList", "ScalarList")), "")


def _apply_sidecar(view: RankView, calls: list[Communication], sidecar: Sequence[CommunicationCall]) -> None:
    """The run noted each call of a step in order: take group, axis, bytes and peers from there if the kinds agree."""
    by_step: dict[int | None, list[Communication]] = defaultdict(list)
    for call in calls:
        by_step[view.step_at(call.arrival)].append(call)
    for index, step in enumerate(view.steps):
        seen = by_step[index]
        noted = [entry for entry in sidecar if entry.step == step.number]
        if [call.kind for call in seen] != [entry.kind for entry in noted]:
            view.warn(
                "sidecar_mismatch", abs(len(seen) - len(noted)) or 1,
                f"step {step.number}: {len(seen)} calls in the trace, {len(noted)} noted by the run, or other kinds; "
                "groups and bytes of this step are unknown",
            )  # fmt: skip
            continue
        for call, entry in zip(seen, noted, strict=True):
            call.group, call.axis, call.bytes = tuple(entry.group), entry.axis, entry.bytes
            call.group_size = len(entry.group)
            call.group_name = view.group_name(call.group)
            if entry.source is not None and entry.destination is not None:
                call.peer = entry.destination if call.direction == "send" else entry.source
                call.tag = entry.tag if entry.tag is not None else call.tag
                call.peer_is_global = True


def _map_peers(calls: list[Communication]) -> None:
    """Peers and roots in the arguments are ranks within the group."""
    for call in calls:
        if call.group is None:
            call.peer = None
            call.root = None
            continue
        for name in ("peer", "root"):
            local = getattr(call, name)
            if local is not None and not (name == "peer" and call.peer_is_global):
                setattr(call, name, call.group[local] if 0 <= local < len(call.group) else None)


def _point_to_point(
    calls: list[Communication], spans: list[gloo.Span], activity: dict[int, IntArray]
) -> list[gloo.Span]:
    """A send or receive span starts inside its call on the calling thread. Returns spans that belong to no call."""
    orphans: list[gloo.Span] = []
    by_thread: dict[int, list[Communication]] = {}
    for call in calls:
        by_thread.setdefault(call.thread, []).append(call)
    for span in sorted(spans, key=lambda item: item.start):
        owner = _enclosing(by_thread.get(span.thread, []), span.start)
        if owner is None:
            orphans.append(span)
            continue
        if owner.direction is None:  # monitored_barrier sends and receives inside its call
            owner.extend(clip(single(span.start, span.end), owner.order, owner.call_end))
            continue
        owner.posted, owner.end, owner.spans = span.start, span.end, 1
        owner.element_type = owner.element_type or span.element_type
        owner.gap = _closing_gap(activity.get(span.thread, EMPTY), span.start, span.end)
        owner.busy = union(owner.inside, owner.gap)
    return orphans


def _enclosing(calls: list[Communication], instant: int) -> Communication | None:
    """The latest call, in order of start, that has not ended at an instant."""
    place = bisect_right(calls, instant, key=lambda call: call.order)
    found = calls[place - 1] if place else None
    return found if found is not None and instant <= found.call_end else None


def _closing_gap(activity: IntArray, start: int, end: int) -> IntArray:
    """The idle stretch of a thread that ends at `end`, clipped to the span."""
    place = int(np.searchsorted(activity[:, 0], end, side="left"))
    last = int(activity[place - 1, 1]) if place else start
    return single(max(start, min(last, end)), end)


def _attach_helpers(calls: list[Communication], helpers: list[_Helper]) -> None:
    """A wait takes the kind of what it waits for: the oldest pending collective of its shape, else the last one."""
    by_thread: dict[int, deque[Communication]] = {}
    for call in calls:
        by_thread.setdefault(call.thread, deque()).append(call)
    pending: dict[tuple[int, int], deque[Communication]] = {}
    latest: dict[int, Communication] = {}
    waited: set[int] = set()
    for helper in sorted(helpers, key=lambda item: item.start):
        coming = by_thread.get(helper.thread, deque())
        while coming and coming[0].order <= helper.start:
            latest[helper.thread] = coming.popleft()
            for size in latest[helper.thread].dims:
                pending.setdefault((helper.thread, size), deque()).append(latest[helper.thread])
        last = latest.get(helper.thread)
        if last is None:
            calls.append(_stray(helper))
            continue
        call = last
        if helper.waits:
            call = _oldest_pending(helper, pending, waited) or last
            waited.add(id(call))
        call.busy = union(call.busy, single(helper.start, helper.end))
        if not call.spans:
            call.end = max(call.end, helper.end)


def _oldest_pending(
    helper: _Helper, pending: dict[tuple[int, int], deque[Communication]], waited: set[int]
) -> Communication | None:
    found = []
    for size in helper.sizes:
        queue = pending.get((helper.thread, size), deque())
        while queue and id(queue[0]) in waited:
            queue.popleft()
        if queue:
            found.append(queue[0])
    return min(found, key=lambda call: call.order, default=None)


def _stray(helper: _Helper) -> Communication:
    """A wait for something that was issued before the trace began."""
    return Communication(
        Kind.UNKNOWN, Evidence.UNKNOWN, helper.start, helper.end, single(helper.start, helper.end),
        name="wait_tensor", thread=helper.thread, order=helper.start, synchronising=False,
    )  # fmt: skip


def _orphan(span: gloo.Span, activity: dict[int, IntArray]) -> Communication:
    """A span whose call is not in the trace: only its name tells the kind."""
    kind = kind_of_operation(span.name)
    direction = _SPAN_DIRECTIONS.get(span.name)
    busy = single(span.start, span.end)
    found = Communication(
        kind or Kind.UNKNOWN, Evidence.NAME if kind else Evidence.UNKNOWN, span.start, span.end, busy,
        name=span.name, thread=span.thread, order=span.start, direction=direction, spans=1,
        synchronising=kind is not Kind.BROADCAST and (kind is not Kind.OTHER or "barrier" in span.name),
    )  # fmt: skip
    if direction is not None:
        found.posted = span.start
        found.gap = _closing_gap(activity.get(span.thread, EMPTY), span.start, span.end)
        found.busy = found.gap
    return found
