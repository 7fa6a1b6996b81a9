"""Pipeline parallelism: each rank holds consecutive layers; micro-batches stream through them.

GPipe and 1F1B give each rank one stage; interleaved 1F1B and the zero-bubble schedule give it several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from shardscope.errors import ConfigError
from shardscope.strategies.accounting import collective, make_plan, rank_state, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.pipeline_trainer import PipelineTrainer, Stage
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import (
    activation_bytes,
    block_flops,
    boundary_shape,
    element_size,
    head_flops,
    missing,
    numel,
)

if TYPE_CHECKING:
    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Interleaved", "Pipeline", "ZeroBubble", "messages", "place_stages", "stage_layers"]


def stage_layers(spec: WorkloadSpec, stages: int) -> list[range]:
    """Layers of each stage: the cut whose heaviest stage is lightest, counting the head; ties go to the evenest cut.

    The embeddings cost no matrix product; the head costs head_flops / block_flops of a layer. All layers weigh the
    same, so only the last stage's share is to be found; a remainder among the others goes to the later ones, which
    keep fewer micro-batches in flight under 1F1B.
    """
    head = head_flops(spec) / block_flops(spec)

    def sizes(last: int) -> list[int]:
        if stages == 1:
            return [last]
        each, more = divmod(spec.layers - last, stages - 1)
        return [each] * (stages - 1 - more) + [each + 1] * more + [last]

    def cost(cut: list[int]) -> tuple[float, float]:
        weights = [*map(float, cut[:-1]), cut[-1] + head]
        return max(weights), sum(weight * weight for weight in weights)

    lasts = [spec.layers] if stages == 1 else range(1, spec.layers - stages + 2)
    best = min((sizes(last) for last in lasts), key=cost)
    bounds = [0, *accumulate(best)]
    return [range(start, end) for start, end in pairwise(bounds)]


def place_stages(spec: WorkloadSpec, places: Sequence[int]) -> list[Stage]:
    """The stages in order; places[i]: the place in the pipeline of the rank that holds stage i."""
    last = len(places) - 1
    return [
        Stage(index=index, place=place, layers=layers, first=index == 0, last=index == last)
        for index, (place, layers) in enumerate(zip(places, stage_layers(spec, len(places)), strict=True))
    ]


def messages(
    spec: WorkloadSpec, stages: Sequence[Stage], ranks: Sequence[int], samples: int
) -> list[ExpectedCollective]:
    """One message of `samples` samples each way per micro-batch and boundary between stages of different ranks."""
    each = numel(boundary_shape(spec, samples)) * element_size(spec)
    lines = []
    for left, right in pairwise(stages):
        ends = ranks[left.place], ranks[right.place]
        if ends[0] != ends[1]:  # what stays on a rank is handed over without a message
            for pair, what in ((ends, "activations"), (ends[::-1], "activation gradients")):
                lines.append(
                    collective(Kind.SEND_RECEIVE, Axis.PIPELINE, pair, what, count=spec.micro_batches, each=each)
                )
    return lines


def _indivisible(layers: int, ranks: int, stages: int) -> str:
    held = "" if stages == ranks else f", {stages // ranks} stages each"
    return f"layers {layers} cannot be divided among {ranks} ranks{held}"


class Pipeline:
    """One stage per rank, under one of torch.distributed.pipelining's schedules."""

    shards: tuple[str, ...] = ("layers",)
    defaults: Mapping[str, Any] = {}
    memory_formula = "16 bytes per parameter of the rank's own stage"

    def __init__(self, *, name: str, display_name: str, schedule: str) -> None:
        self.name = name
        self.display_name = display_name
        self.schedule = schedule  # class in torch.distributed.pipelining

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """At least one layer per stage and, but for GPipe, one micro-batch per rank."""
        if world_size < 2:
            return "needs at least 2 ranks"
        if (reason := missing(spec, "stage")) is not None:
            return reason
        # With as few stages as a parameter allows; `plan` tells of those that are asked for.
        fewest = len(self._places(world_size, dict.fromkeys(self.defaults, 1)))
        if spec.layers < fewest:
            return _indivisible(spec.layers, world_size, fewest)
        if self.schedule != "ScheduleGPipe" and spec.micro_batches < world_size:
            return f"micro_batches {spec.micro_batches} are fewer than the {world_size} ranks that are to be kept busy"
        return None

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Each rank holds its stages; messages: see `messages`.

        Raises ConfigError when the parameters ask for more stages than there are layers.
        """
        stages = self.stages(spec, world_size, parameters)
        state, active = [], []
        for place in range(world_size):
            mine = [stage for stage in stages if stage.place == place]
            held = [numel(shape) for stage in mine for shape in stage.shapes(spec).values()]
            state.append(rank_state(spec, place, parameters=held, gradients=held, optimized=held))
            kept = self._layers_in_flight(spec, mine, world_size)
            active.append(activation_bytes(spec, spec.micro_batch_size, layers=kept))
        return make_plan(
            spec,
            state,
            messages(spec, stages, world(world_size), spec.micro_batch_size),
            stages=(world(world_size),),
            bubble_fraction=self.bubble(world_size, spec.micro_batches, len(stages) // world_size),
            activation_bytes=tuple(active),
        )

    def stages(self, spec: WorkloadSpec, ranks: int, parameters: Mapping[str, Any]) -> list[Stage]:
        """The stages in order, with the place of the rank that holds each. Raises ConfigError, see `plan`."""
        places = self._places(ranks, parameters)
        if spec.layers < len(places):
            raise ConfigError(_indivisible(spec.layers, ranks, len(places)))
        return place_stages(spec, places)

    def _places(self, ranks: int, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        """The rank of each stage."""
        return world(ranks)

    def bubble(self, ranks: int, micro_batches: int, stages_per_rank: int) -> float:
        """(p − 1)/(m + p − 1): GPipe, and 1F1B as well (Megatron, arXiv 2104.04473, section 2.2, as a share of the
        whole time)."""
        return (ranks - 1) / (micro_batches + ranks - 1)

    def _layers_in_flight(self, spec: WorkloadSpec, mine: Sequence[Stage], ranks: int) -> int:
        """Layers times micro-batches whose activations a rank holds at once: all m under GPipe, p − stage in 1F1B."""
        (stage,) = mine
        held = spec.micro_batches if self.schedule == "ScheduleGPipe" else ranks - stage.index
        return min(spec.micro_batches, held) * len(stage.layers)

    def build(self, context: BuildContext) -> Trainer:
        """This rank's part of the model under the schedule."""
        stages = self.stages(context.spec, context.world_size, context.parameters)
        return PipelineTrainer(context, self.schedule, stages)


class Interleaved(Pipeline):
    """v stages per rank: stage i is on rank i mod p, so a micro-batch goes round the ranks v times."""

    defaults: Mapping[str, Any] = {"stages_per_rank": 2}
    memory_formula = "16 bytes per parameter of the rank's own stages"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """As 1F1B; torch also wants rounds of equally many micro-batches."""
        reason = super().not_applicable(spec, world_size)
        if reason is None and spec.micro_batches % (rounds := spec.micro_batches // world_size):
            reason = f"micro_batches {spec.micro_batches} cannot be divided into {rounds} equal rounds"
        return reason

    def _places(self, ranks: int, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        return world(ranks) * int(parameters["stages_per_rank"])

    def bubble(self, ranks: int, micro_batches: int, stages_per_rank: int) -> float:
        """(p − 1)/(v·m + p − 1) (the same source)."""
        return (ranks - 1) / (stages_per_rank * micro_batches + ranks - 1)

    def _layers_in_flight(self, spec: WorkloadSpec, mine: Sequence[Stage], ranks: int) -> int:
        """Forwards before the first backward: 2·(p − 1 − rank) + (v − 1)·(micro-batches per round), and one more.

        torch's _get_warmup_ops and forward_stage_index: a round of micro-batches through one stage after another.
        """
        m, v = spec.micro_batches, len(mine)
        each = m // max(1, m // ranks)
        warm_up = min((v - 1) * each + 2 * (ranks - 1 - mine[0].place), v * m)
        return sum(len(mine[step // each % v].layers) for step in range(min(warm_up + 1, v * m)))


class ZeroBubble(Pipeline):
    """Two stages per rank in the shape of a V; the weights' gradients, which nobody waits for, fill the gaps."""

    memory_formula = "16 bytes per parameter of the rank's own stages"

    def _places(self, ranks: int, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        return (*range(ranks), *reversed(range(ranks)))

    def bubble(self, ranks: int, micro_batches: int, stages_per_rank: int) -> float:
        """((p − 1)/v)/(3m + (p − 1)/v) for a forward as long as either part of the backward.

        arXiv 2401.10241, section 6: with enough micro-batches a rank is idle only until the first reaches it, p − 1
        stages' forwards or fewer. torch's schedule fills p ranks from 2p − 1 micro-batches on; each one fewer leaves
        two more such gaps. This is of a step that all ranks begin together. They also end together, so without a
        barrier one step may overlap the next, and then less is idle.
        """
        idle = max(ranks - 1, 2 * (2 * ranks - 1 - micro_batches)) / stages_per_rank
        return idle / (3 * micro_batches + idle)

    def _layers_in_flight(self, spec: WorkloadSpec, mine: Sequence[Stage], ranks: int) -> int:
        """2p − rank micro-batches in the first stage and rank in the second, or one less and one more."""
        down, up = (len(stage.layers) for stage in mine)
        place, m = mine[0].place, spec.micro_batches
        both = ((2 * ranks - place, place), (2 * ranks - place - 1, place + 1))
        return max(min(m, first) * down + min(m, second) * up for first, second in both)


STRATEGIES = (
    Pipeline(name="pipeline_gpipe", display_name="pipeline (GPipe)", schedule="ScheduleGPipe"),
    Pipeline(name="pipeline_1f1b", display_name="pipeline (1F1B)", schedule="Schedule1F1B"),
    Interleaved(
        name="pipeline_interleaved", display_name="pipeline (interleaved 1F1B)", schedule="ScheduleInterleaved1F1B"
    ),
    ZeroBubble(name="pipeline_zbv", display_name="pipeline (zero bubble V)", schedule="ScheduleZBVZeroBubble"),
)
