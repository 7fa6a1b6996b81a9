"""The pipeline bubble: where it can be, what it is compared with, and what the difference consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardscope.attribution.intervals import IntArray, clip, from_pairs, intersect, subtract, total, union
from shardscope.attribution.ledger import Frame, RowParts
from shardscope.attribution.match import Matched
from shardscope.attribution.result import PipelineBubble
from shardscope.attribution.share import TRANSFER
from shardscope.attribution.view import RankView
from shardscope.vocabulary import Axis, Kind

__all__ = ["Pipeline", "closed_form", "find_pipelines", "frames", "summarise"]


@dataclass
class Pipeline:
    """Ranks that stream micro-batches to each other, in stage order; `reason`: why its bubble cannot be measured."""

    ranks: tuple[int, ...]
    reason: str | None = None
    closed_form: float | None = None  # given by a plan
    marked: bool = False
    frames: dict[tuple[int, int | None], Frame] = field(default_factory=dict)  # (rank, step number) → frame


def closed_form(ranks: int, micro_batches: int, stages_per_rank: int = 1) -> float:
    """Bubble share of GPipe and 1F1B, (p−1)/(m+p−1), and of interleaved schedules, (p−1)/(v·m+p−1).

    Narayanan et al., 2104.04473, section 2.2, as a share of the pipeline's whole time.
    """
    return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)


def find_pipelines(
    views: Mapping[int, RankView],
    matches: Sequence[Matched],
    stages: Sequence[Sequence[int]],
    fraction: float | None,
) -> list[Pipeline]:
    """The pipelines of a run: as planned, else the sets of ranks that exchange messages."""
    if stages:
        return [_checked(Pipeline(tuple(ranks), closed_form=fraction), views) for ranks in stages]
    links: dict[int, set[int]] = {}
    blind = False
    for rank, view in views.items():
        for item in view.communications:
            if item.kind is not Kind.SEND_RECEIVE or item.axis not in (Axis.PIPELINE, Axis.UNKNOWN):
                continue
            if item.direction is None or item.peer is None:
                blind = True
                continue
            links.setdefault(rank, set()).add(item.peer)
            links.setdefault(item.peer, set()).add(rank)
    found = [_checked(Pipeline(ranks), views) for ranks in _connected(links)]
    if blind and not found and len(views) > 1:
        reason = "the trace does not say which send/receive kernels send and which receive"
        found = [Pipeline(tuple(sorted(views)), reason=reason)]
    paired = {rank for match in matches if match.pair for rank in match.members}
    for pipeline in found:
        if pipeline.reason is None and not paired.issuperset(pipeline.ranks):
            pipeline.reason = "sends and receives of its ranks do not match up"
    return found


def _connected(links: Mapping[int, set[int]]) -> list[tuple[int, ...]]:
    left, parts = set(links), []
    while left:
        part, todo = set(), [min(left)]
        while todo:
            rank = todo.pop()
            if rank not in part:
                part.add(rank)
                todo += links[rank]
        left -= part
        parts.append(tuple(sorted(part)))
    return parts


def _checked(pipeline: Pipeline, views: Mapping[int, RankView]) -> Pipeline:
    missing = [rank for rank in pipeline.ranks if rank not in views]
    if missing:
        pipeline.reason = f"traces of stages are missing: rank {', '.join(map(str, missing))}"
    else:
        pipeline.marked = all(len(views[rank].micro_compute) for rank in pipeline.ranks)
    return pipeline


def frames(pipeline: Pipeline, views: Mapping[int, RankView], offsets: Mapping[int, int]) -> None:
    """Fill `pipeline.frames` for every step that all its ranks have."""
    if pipeline.reason is not None:
        return
    numbers = [{step.number for step in views[rank].steps} for rank in pipeline.ranks]
    for number in set.intersection(*numbers):
        spans: dict[int, tuple[int, int]] = {}
        for rank in pipeline.ranks:
            work = _micro_compute(views[rank], number, pipeline.marked)
            if len(work):
                spans[rank] = int(work[0, 0]), int(work[-1, 1])
        if len(spans) != len(pipeline.ranks):
            continue
        begin = min(first - offsets.get(rank, 0) for rank, (first, _) in spans.items())
        finish = max(last - offsets.get(rank, 0) for rank, (_, last) in spans.items())
        stages = frozenset(pipeline.ranks)
        for rank, (first, last) in spans.items():
            shift = offsets.get(rank, 0)
            step = next(step for step in views[rank].steps if step.number == number)
            pipeline.frames[rank, number] = Frame(
                start=max(begin + shift, step.start),
                end=min(finish + shift, step.end),
                first=first,
                last=last,
                begin=begin + shift,
                finish=finish + shift,
                stages=stages,
            )


def _inside(bubble: IntArray, view: RankView, shift: int, begin: int, finish: int) -> IntArray:
    """A rank's bubble in [A, Z). Where its trace ends before Z, after its last step, it is idle for the rest."""
    end = max(step.end for step in view.steps) - shift
    rest = np.array([[end, max(end, finish)]], dtype=np.int64)
    return clip(union(bubble - shift, rest), begin, finish)


def _micro_compute(view: RankView, number: int | None, marked: bool) -> IntArray:
    """Compute of micro-batches in one step: inside the marks, else everything before the optimizer."""
    step = next(step for step in view.steps if step.number == number)
    if marked:
        return clip(view.micro_compute, step.start, step.end)
    return subtract(clip(view.compute, step.start, step.end), clip(view.optimizer_compute, step.start, step.end))


def summarise(
    pipeline: Pipeline,
    views: Mapping[int, RankView],
    parts: Mapping[tuple[int, int | None], RowParts],
    offsets: Mapping[int, int],
    number: int | None,
) -> PipelineBubble:
    """The pipeline's bubble in one step beside its closed form.

    The share of a rank is its bubble inside [A, Z) over Z − A. At each of its instants another stage is at a
    micro-batch (what the schedule and unequal stages cost), or none is and a message moves (communication), or neither
    (overhead).
    """
    keys = [(rank, number) for rank in pipeline.ranks]
    m = _micro_batches(pipeline, views, number)
    form = pipeline.closed_form
    if form is None and m:
        form = closed_form(len(pipeline.ranks), m)
    if pipeline.reason is not None or any(key not in pipeline.frames or key not in parts for key in keys):
        reason = pipeline.reason or "a stage has no micro-batch compute in this step"
        return PipelineBubble(
            ranks=pipeline.ranks,
            micro_batches=m,
            makespan_ns=None,
            measured_fraction=None,
            closed_form_fraction=form,
            reason=reason,
        )
    shift = {rank: offsets.get(rank, 0) for rank in pipeline.ranks}
    begin = min(pipeline.frames[key].begin - shift[key[0]] for key in keys)
    finish = max(pipeline.frames[key].finish - shift[key[0]] for key in keys)
    makespan = finish - begin
    # A rank that is done early waits on in its next step: all its rows count, inside [A, Z).
    bubbles = {
        rank: union(*(_bubble(part) for key, part in parts.items() if key[0] == rank)) for rank in pipeline.ranks
    }
    bubbles = {rank: _inside(bubbles[rank], views[rank], shift[rank], begin, finish) for rank in pipeline.ranks}
    busy = {rank: _at_work(views[rank], parts[rank, number]) - shift[rank] for rank in pipeline.ranks}
    messages = union(*(_moving(parts[key]) - shift[key[0]] for key in keys))
    fractions, structural, communication = {}, 0, 0
    for rank in pipeline.ranks:
        others = union(*(subtract(busy[other], bubbles[other]) for other in pipeline.ranks if other != rank))
        fractions[str(rank)] = total(bubbles[rank]) / makespan
        structural += total(intersect(bubbles[rank], others))
        communication += total(intersect(subtract(bubbles[rank], others), messages))
    count = len(keys) * makespan
    measured = sum(fractions.values()) / len(keys)
    return PipelineBubble(
        ranks=pipeline.ranks, micro_batches=m, makespan_ns=makespan, measured_fraction=measured,
        closed_form_fraction=form, fraction_by_rank=fractions,
        imbalance_fraction=structural / count - form if form is not None else None,
        communication_wait_fraction=communication / count,
        overhead_fraction=measured - structural / count - communication / count,
        upper_bound=not pipeline.marked,
    )  # fmt: skip


def _bubble(part: RowParts) -> IntArray:
    """The instants of a row's bubble."""
    waits: list[tuple[int, int]] = []
    for row in part.moved & (part.shares.ns > 0):
        waits += zip(part.shares.left[row].tolist(), part.shares.right[row].tolist(), strict=True)
    return union(part.bubble_idle, from_pairs(waits))


def _at_work(view: RankView, part: RowParts) -> IntArray:
    """When a rank is at a micro-batch: its compute, on CPU also the operators' gaps inside its marks."""
    if view.launches is not None:
        return part.compute
    end = part.row.start_ns + part.row.window_ns
    return union(part.compute, clip(view.mark_spans, part.row.start_ns, end))


def _moving(part: RowParts) -> IntArray:
    """Instants at which a message of this rank is exposed and under way."""
    rows = [i for i, label in enumerate(part.shares.labels) if label.kind is Kind.SEND_RECEIVE]
    pairs: list[tuple[int, int]] = []
    for i in rows:
        taken = part.shares.state[i] == TRANSFER
        pairs += list(zip(part.shares.left[taken].tolist(), part.shares.right[taken].tolist(), strict=True))
    return from_pairs(pairs)


def _micro_batches(pipeline: Pipeline, views: Mapping[int, RankView], number: int | None) -> int | None:
    """Marked micro-batches, else messages from a rank to the next stage."""
    counts: set[int] = set()
    for rank in pipeline.ranks:
        view = views.get(rank)
        step = next((s for s in view.steps if s.number == number), None) if view else None
        if view is None or step is None:
            continue
        marks = {mark.index for mark in view.marks if step.start <= mark.start < step.end and not mark.backward}
        if marks:
            counts.add(len(marks))
            continue
        place = pipeline.ranks.index(rank)
        if place + 1 < len(pipeline.ranks):
            index = view.steps.index(step)
            following = pipeline.ranks[place + 1]
            sent = [c for c in view.communications if c.direction == "send" and c.peer == following and c.step == index]
            counts.add(len(sent))
    counts.discard(0)
    return counts.pop() if len(counts) == 1 else None
