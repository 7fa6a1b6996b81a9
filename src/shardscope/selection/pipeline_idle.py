"""A pipeline's idle time rank by rank, what it consists of, and a split of the layers that would leave less of it.

measured = closed form + stage imbalance + communication wait + overhead of calls, as shares of the span from the first
to the last micro-batch compute. At each instant of a rank's bubble another stage is at work (the schedule, and beyond
its closed form unequal stages), or none is and a message moves, or neither (calls, dispatch).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from shardscope.attribution.intervals import EMPTY, IntArray, clip, from_pairs, intersect, subtract, total, union
from shardscope.attribution.result import INTERVALS_FILE, Attribution, PipelineBubble, read_table
from shardscope.errors import ResultError

__all__ = ["RankIdle", "Split", "better_split", "idle_by_rank", "read_intervals", "stage_times"]

AT_WORK = ("compute", "host_other")
MOVING = "send_receive:transfer"
BUBBLE = "bubble"
MOST_SPLITS = 200_000  # of the layers: beyond, no split is looked for
Table = Mapping[int, Mapping[str, IntArray]]  # rank → category → intervals on that rank's clock


@dataclass(frozen=True)
class RankIdle:
    """Shares of the pipeline's span; measured = closed_form + imbalance + communication + overhead."""

    rank: int
    measured: float
    closed_form: float
    imbalance: float
    communication: float
    overhead: float

    @property
    def leading(self) -> str:
        """The largest part beyond the closed form."""
        parts = {"imbalance": self.imbalance, "communication": self.communication, "overhead": self.overhead}
        return max(parts, key=lambda part: parts[part])


@dataclass(frozen=True)
class Split:
    """Layers by stage now and better; gain: by how much the heaviest stage gets lighter, as a share of it."""

    now: tuple[int, ...]
    better: tuple[int, ...]
    gain: float


def read_intervals(folder: Path) -> Table:
    """intervals.csv of an attribution folder. Raises ResultError when it cannot be read."""
    path = folder / INTERVALS_FILE
    pairs: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    rows = read_table(path)
    try:
        for row in rows:
            if row["rank"]:
                pairs[int(row["rank"]), row["category"]].append((int(row["start_ns"]), int(row["end_ns"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path}: cannot be read ({error}); attribute the run again") from error
    found: dict[int, dict[str, IntArray]] = defaultdict(dict)
    for (rank, category), listed in pairs.items():
        found[rank][category] = from_pairs(listed)
    return found


def idle_by_rank(pipeline: PipelineBubble, result: Attribution, table: Table) -> list[RankIdle]:
    """The parts of each rank's idle time; empty where the bubble or its closed form is not known.

    The span starts with the first stage's compute. A rank that is done early idles on in its next step, beyond the
    table, while others work: what is measured and not found in the table counts as that.
    """
    form, span = pipeline.closed_form_fraction, pipeline.makespan_ns
    if form is None or not span or any(rank not in table for rank in pipeline.ranks):
        return []
    offsets = {rank: result.clock.offset_ns.get(str(rank), 0) if result.clock.applied else 0 for rank in pipeline.ranks}
    aligned = {rank: {c: i - offsets[rank] for c, i in table[rank].items()} for rank in pipeline.ranks}
    work = {rank: union(*(aligned[rank].get(c, EMPTY) for c in AT_WORK)) for rank in pipeline.ranks}
    begin = min((int(i[0, 0]) for i in (aligned[pipeline.ranks[0]].get("compute", EMPTY),) if len(i)), default=0)
    moving = union(*(aligned[rank].get(MOVING, EMPTY) for rank in pipeline.ranks))
    found = []
    for rank in pipeline.ranks:
        # A rank may wait for messages of this step while an earlier one still runs elsewhere.
        bubble = clip(aligned[rank].get(BUBBLE, EMPTY), begin, begin + span)
        others = union(*(work[other] for other in pipeline.ranks if other != rank))
        measured = pipeline.fraction_by_rank.get(str(rank), total(bubble) / span)
        communication = total(intersect(subtract(bubble, others), moving)) / span
        overhead = total(subtract(subtract(bubble, others), moving)) / span
        found.append(
            RankIdle(
                rank=rank,
                measured=measured,
                closed_form=form,
                imbalance=measured - form - communication - overhead,
                communication=communication,
                overhead=overhead,
            )
        )
    return found


def stage_times(pipeline: PipelineBubble, result: Attribution) -> list[float] | None:
    """Compute of each stage in the summary step, ns, in stage order; None when a stage is missing."""
    found = {
        rank.rank: float(row.compute_ns)
        for rank in result.ranks
        for row in rank.steps
        if row.step == result.summary_step and rank.rank is not None
    }
    return [found[rank] for rank in pipeline.ranks] if set(pipeline.ranks) <= set(found) else None


def better_split(layers: Sequence[int], times: Sequence[float]) -> Split | None:
    """The contiguous split whose heaviest stage is lightest, if it is lighter than now.

    A layer takes what it takes where nothing but layers is: the mean of the inner stages, of the first one when there
    are two. What the first and last stage take beyond their layers (embeddings, the head) stays with them.
    """
    stages, count = len(layers), sum(layers)
    if stages < 2 or count < stages or min(layers) < 1 or min(times) <= 0:
        return None
    plain = range(1, stages - 1) if stages > 2 else range(1)
    layer = sum(times[stage] for stage in plain) / sum(layers[stage] for stage in plain)
    extra = [max(0.0, time - own * layer) if stage in (0, stages - 1) else 0.0
             for stage, (own, time) in enumerate(zip(layers, times, strict=True))]  # fmt: skip

    def heaviest(split: Sequence[int]) -> float:
        return max(own * layer + more for own, more in zip(split, extra, strict=True))

    best = min(_splits(count, stages), key=lambda split: (heaviest(split), _unevenness(split)), default=tuple(layers))
    now = heaviest(layers)
    gain = 1 - heaviest(best) / now
    return Split(now=tuple(layers), better=tuple(best), gain=gain) if gain > 1e-9 else None


def _splits(count: int, stages: int) -> list[tuple[int, ...]]:
    """All ways to cut `count` layers into `stages` parts of at least one."""
    ways = 1
    for index in range(stages - 1):
        ways = ways * (count - 1 - index) // (index + 1)
    if ways > MOST_SPLITS:
        return []
    cuts = combinations(range(1, count), stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *cut, count))) for cut in cuts]


def _unevenness(split: Sequence[int]) -> int:
    return sum(own * own for own in split)
