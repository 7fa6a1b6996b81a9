"""The ledger: one row per rank and step whose parts add up to the step exactly."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import (
    EMPTY,
    IntArray,
    clip,
    complement,
    from_pairs,
    intersect,
    subtract,
    total,
    union,
)
from shardscope.attribution.result import BubblePhases, Calls, StepRow
from shardscope.attribution.share import WAIT, Label, Shares, States, share
from shardscope.attribution.steps import LAUNCH_UNKNOWN
from shardscope.attribution.view import Launches, RankView, Step
from shardscope.errors import ResultError
from shardscope.vocabulary import Axis, Kind

__all__ = ["Frame", "RowParts", "build_row", "communications_by_step"]

Key = TypeVar("Key")


@dataclass(frozen=True)
class Frame:
    """Where a pipeline's bubble can be on one rank in one step. Times are on the rank's clock.

    [begin, finish): from the earliest to the latest micro-batch compute of any stage ([A, Z) of the design);
    [start, end): the part of it inside the rank's window; first, last: its own first and last micro-batch compute.
    `stages`: all ranks of the pipeline.
    """

    start: int
    end: int
    first: int
    last: int
    begin: int
    finish: int
    stages: frozenset[int]

    def spans_stages(self, group: tuple[int, ...] | None) -> bool:
        """Does a collective of this group tie several stages together?"""
        return group is not None and len(self.stages.intersection(group)) > 1


@dataclass
class RowParts:
    """A row and the sets behind it, for pictures and cross-checks. Sets are on the rank's clock, inside the window."""

    row: StepRow
    compute: IntArray
    busy: IntArray
    copies: IntArray
    bubble_idle: IntArray
    host: IntArray
    shares: Shares
    moved: NDArray[np.bool_]  # shares that are bubble; like shares.ns


Lists = list[list[Communication]]


def communications_by_step(view: RankView) -> tuple[Lists, Lists]:
    """For each step the communication that is under way inside its window, and what belongs to it."""
    lists: Lists = [[] for _ in view.steps]
    launched: Lists = [[] for _ in view.steps]
    starts = np.array([step.start for step in view.steps], dtype=np.int64)
    ends = np.array([step.end for step in view.steps], dtype=np.int64)
    for item in view.communications:
        if item.step is not None and item.step < len(launched):
            launched[item.step].append(item)
    busy = [item for item in view.communications if len(item.busy)]
    lows = np.searchsorted(ends, np.array([item.busy[0, 0] for item in busy], dtype=np.int64), side="right")
    highs = np.searchsorted(starts, np.array([item.busy[-1, 1] for item in busy], dtype=np.int64), side="left")
    for item, low, high in zip(busy, lows.tolist(), highs.tolist(), strict=True):
        for index in range(low, high):
            lists[index].append(item)
    return lists, launched


def build_row(
    view: RankView, index: int, items: Sequence[Communication], launched: Sequence[Communication], frame: Frame | None
) -> RowParts:
    """The ledger row of one step, from what is under way in its window and what the step itself launched.

    Raises ResultError if its parts do not add up to the window.
    """
    step = view.steps[index]
    compute = clip(view.compute, step.start, step.end)
    labels = _label_states(items)
    exposed = {label: states.exposed(compute, step.start, step.end) for label, states in labels.items()}
    cuts = (frame.first, frame.last, frame.end) if frame else ()
    shares = share(exposed, cuts)
    busy_all = clip(union(*(item.busy for item in items)), step.start, step.end)
    copies = subtract(subtract(clip(view.copies, step.start, step.end), compute), busy_all)
    idle = complement(union(compute, busy_all, copies), step.start, step.end)
    bubble_idle = EMPTY
    moved = np.zeros(shares.ns.shape, dtype=bool)
    if frame is not None:
        bubble_idle = intersect(idle, from_pairs([(frame.start, frame.first), (frame.last, frame.end)]))
        moved = _bubble_waits(shares, frame)
    host = subtract(idle, bubble_idle)
    row = _row(view, step, items, labels, exposed, compute, shares, moved)
    row.copies_exposed_ns = total(copies)
    row.host_other_ns = total(host)
    row.data_loading_ns = total(intersect(host, clip(view.loading, step.start, step.end)))
    if frame is not None:
        _fill_bubble(row, shares, moved, bubble_idle, frame)
    if view.launches is not None:
        row.not_launched_ns, row.queued_ns = _split_idle(host, view.launches)
    row.calls = _calls(view, launched)
    _check(row, view)
    return RowParts(row, compute, busy_all, copies, bubble_idle, host, shares, moved)


def _label_states(items: Iterable[Communication]) -> dict[Label, States]:
    parts: dict[Label, tuple[list[IntArray], list[IntArray], list[IntArray]]] = defaultdict(lambda: ([], [], []))
    for item in items:
        transfer, wait, unknown = parts[Label(item.kind, item.axis, item.group, item.group_name)]
        if item.transfers is None or item.waits is None:
            unknown.append(item.busy)
        else:
            transfer.append(item.transfers)
            wait.append(item.waits)
    return {label: States(union(*t), union(*w), union(*u)) for label, (t, w, u) in parts.items()}


def _row(
    view: RankView,
    step: Step,
    items: Sequence[Communication],
    labels: dict[Label, States],
    exposed: dict[Label, States],
    compute: IntArray,
    shares: Shares,
    moved: NDArray[np.bool_],
) -> StepRow:
    window = {label: states.exposed(EMPTY, step.start, step.end) for label, states in labels.items()}
    busy, wait, unknown = _by_kind(window)
    bare, bare_wait, _ = _by_kind(exposed)
    attributed: dict[Kind, int] = defaultdict(int)
    waited: dict[Kind, int] = defaultdict(int)
    by_axis: dict[Axis, int] = defaultdict(int)
    split: dict[Kind, dict[Axis, int]] = defaultdict(lambda: defaultdict(int))
    for i, label in enumerate(shares.labels):
        kept = shares.total(i, ~moved[i])
        attributed[label.kind] += kept
        by_axis[label.axis] += kept
        split[label.kind][label.axis] += kept
        waited[label.kind] += shares.total(i, ~moved[i] & (shares.state[i] == WAIT))
    blind = bool(items) and all(item.waits is None for item in items)
    known = not blind
    return StepRow(
        step=step.number, start_ns=step.start, window_ns=step.end - step.start, complete=step.complete,
        compute_ns=total(compute), busy_ns=busy, exposed_ns=bare,
        overlapped_ns=_less(busy, bare), attributed_ns=_kept(attributed), attributed_by_axis_ns=_kept(by_axis),
        attributed_by_kind_axis_ns={kind: found for kind in split if (found := _kept(split[kind]))},
        wait_ns=wait if known else None, transfer_ns=_less(busy, wait) if known else None,
        exposed_wait_ns=bare_wait if known else None, exposed_transfer_ns=_less(bare, bare_wait) if known else None,
        attributed_wait_ns=_kept(waited) if known else None,
        bounds=known and (any(item.bounds for item in items) or bool(unknown)),
        copies_exposed_ns=0, bubble_ns=None, bubble_phase_ns=None, host_other_ns=0, data_loading_ns=0,
        not_launched_ns=None, queued_ns=None, late_device_ns=step.late, foreign_device_ns=step.foreign,
        calls=[], flags=[],
    )  # fmt: skip


def _by_kind(states: dict[Label, States]) -> tuple[dict[Kind, int], dict[Kind, int], dict[Kind, int]]:
    """Per kind: busy, surely waiting, unknown. An instant transfers if any collective of the kind does."""
    busy: dict[Kind, int] = {}
    wait: dict[Kind, int] = {}
    unknown: dict[Kind, int] = {}
    for kind in Kind:
        mine = [item for label, item in states.items() if label.kind is kind]
        if not mine:
            continue
        transfer = union(*(item.transfer for item in mine))
        unsure = subtract(union(*(item.unknown for item in mine)), transfer)
        waiting = subtract(subtract(union(*(item.wait for item in mine)), transfer), unsure)
        busy[kind] = total(transfer) + total(unsure) + total(waiting)
        wait[kind], unknown[kind] = total(waiting), total(unsure)
    return _kept(busy), _kept(wait), _kept(unknown)


def _kept(values: dict[Key, int]) -> dict[Key, int]:
    """Without the entries that have no time."""
    return {key: value for key, value in values.items() if value}


def _less(whole: dict[Kind, int], part: dict[Kind, int]) -> dict[Kind, int]:
    return _kept({kind: value - part.get(kind, 0) for kind, value in whole.items()})


def _bubble_waits(shares: Shares, frame: Frame) -> NDArray[np.bool_]:
    """Shares that are bubble: waiting in send/receive, and up to the pipeline's end in collectives that tie stages."""
    moved = np.zeros(shares.ns.shape, dtype=bool)
    for i, label in enumerate(shares.labels):
        waiting = shares.state[i] == WAIT
        if label.kind is Kind.SEND_RECEIVE:
            moved[i] = waiting
        elif frame.spans_stages(label.group):
            moved[i] = waiting & (shares.left < frame.end)
    return moved


def _fill_bubble(row: StepRow, shares: Shares, moved: NDArray[np.bool_], idle: IntArray, frame: Frame) -> None:
    phases = {"before": 0, "between": 0, "after": 0}
    waits = np.where(moved, shares.ns, 0).sum(axis=0) if len(shares.labels) else np.zeros(0, dtype=np.int64)
    early, late = shares.left < frame.first, shares.left >= frame.last
    phases["before"] = int(waits[early].sum()) + total(clip(idle, row.start_ns, frame.first))
    phases["after"] = int(waits[late & ~early].sum()) + total(clip(idle, frame.last, row.start_ns + row.window_ns))
    phases["between"] = int(waits.sum()) + total(idle) - phases["before"] - phases["after"]
    row.bubble_ns = int(waits.sum()) + total(idle)
    row.bubble_phase_ns = BubblePhases(**phases)


def _split_idle(idle: IntArray, launches: Launches) -> tuple[int, int]:
    """Idle time by the next device work: before its launch the host is late, after it something else holds it."""
    if not len(idle) or not len(launches.start):
        return 0, 0
    start, end = idle[:, 0], idle[:, 1]
    place = np.searchsorted(launches.start, end, side="left")
    launch = launches.launch[np.minimum(place, len(launches.start) - 1)]
    known = (place < len(launches.start)) & (launch != LAUNCH_UNKNOWN)
    turn = np.clip(launch, start, end)
    return int((turn - start)[known].sum()), int((end - turn)[known].sum())


def _calls(view: RankView, launched: Iterable[Communication]) -> list[Calls]:
    """Events of a step by kind, axis and group; a message's group is (source, destination)."""
    found: dict[tuple[Kind, Axis, tuple[int, ...] | None], list[Communication]] = defaultdict(list)
    for item in launched:
        group = item.group if item.direction is None else _ends(view.rank, item)
        found[item.kind, item.axis, group].append(item)
    order = sorted(found, key=lambda key: (list(Kind).index(key[0]), key[1], key[2] or ()))
    return [
        Calls(
            kind=key[0], axis=key[1], group=key[2], count=len(found[key]),
            bytes=None if any(i.bytes is None for i in found[key]) else sum(i.bytes or 0 for i in found[key]),
        )
        for key in order
    ]  # fmt: skip


def _ends(rank: int | None, item: Communication) -> tuple[int, int] | None:
    if rank is None or item.peer is None:
        return None
    return (rank, item.peer) if item.direction == "send" else (item.peer, rank)


def _check(row: StepRow, view: RankView) -> None:
    parts = [row.compute_ns, row.copies_exposed_ns, row.bubble_ns or 0, row.host_other_ns, *row.attributed_ns.values()]
    if row.total_ns != row.window_ns or min(parts) < 0:
        raise ResultError(
            f"{view.timeline.path}: step {row.step} does not add up ({row.total_ns} of {row.window_ns} ns); "
            "this is a defect of shardscope, please report the trace"
        )
