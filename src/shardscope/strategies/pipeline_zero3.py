"""Pipeline × FSDP2 on 4 ranks: two pipelines of two stages, each with half of every micro-batch; stages are sharded.

Nothing of its own: the pipeline's trainer on one dimension of a mesh, fsdp.py along the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardscope.strategies import fsdp
from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.pipeline import Pipeline, messages, place_stages
from shardscope.strategies.pipeline_trainer import Lane, PipelineTrainer, Stage
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes

if TYPE_CHECKING:
    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "PipelineZero3"]

_STAGES, _DATA = 2, 2  # rank = stage · 2 + data: the ranks that share a stage are neighbours
_PIPELINES = ((0, 2), (1, 3))
_DATA_GROUPS = ((0, 1), (2, 3))  # by stage


class PipelineZero3:
    """1F1B whose stages fully_shard shards. torch accumulates whole gradients and reduces them once per step."""

    name = "pipeline_zero3"
    display_name = "pipeline (1F1B) × ZeRO-3"
    shards: tuple[str, ...] = ("layers", "batch", "optimizer_state", "gradients", "parameters")
    defaults: Mapping[str, Any] = {}
    memory_formula = "8 bytes per parameter of the rank's own stage; inside the step 12 and the largest gathered group"
    _pipeline = Pipeline(name="1f1b", display_name="1F1B", schedule="Schedule1F1B")

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """On 4 ranks, where both parts apply on 2."""
        if world_size != _STAGES * _DATA:
            return f"is laid out for 4 ranks, 2 stages × 2 data; there are {world_size}"
        reason = self._pipeline.not_applicable(spec, _STAGES)
        return reason or undivided(_DATA, {"micro-batch size": spec.micro_batch_size})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Messages of half a micro-batch in each pipeline; all-gathers and one reduce-scatter per group of a stage."""
        stages, samples = place_stages(spec, range(_STAGES)), spec.micro_batch_size // _DATA
        state, active = [], []
        for rank in range(world_size):
            stage = stages[rank // _DATA]
            held = [fsdp.shard_elements(shape, rank % _DATA, _DATA) for shape in stage.shapes(spec).values()]
            state.append(rank_state(spec, rank, parameters=held, gradients=held, optimized=held))
            flight = min(spec.micro_batches, _STAGES - stage.index)
            active.append(activation_bytes(spec, samples, layers=flight * len(stage.layers)))
        lines = [line for ranks in _PIPELINES for line in messages(spec, stages, ranks, samples)]
        return make_plan(
            spec,
            state,
            [*lines, *_sharding(spec, stages)],
            stages=_PIPELINES,
            bubble_fraction=self._pipeline.bubble(_STAGES, spec.micro_batches, 1),
            activation_bytes=tuple(active),
        )

    def build(self, context: BuildContext) -> Trainer:
        """The pipeline's trainer with its stages sharded."""
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(context.device.type, (_STAGES, _DATA), mesh_dim_names=("pipeline", "data"))

        def shard(part: Any) -> Any:
            fsdp.shard(part, mesh["data"], reshard=True)
            return part

        replica = context.rank % _DATA
        lane = Lane(
            ranks=_PIPELINES[replica],
            replica=replica,
            replicas=_DATA,
            group=mesh.get_group("pipeline"),
            wrap=shard,
            axes={**dict.fromkeys(_PIPELINES, Axis.PIPELINE), **dict.fromkeys(_DATA_GROUPS, Axis.DATA)},
            after_request=fsdp.give_back,
        )
        return PipelineTrainer(context, self._pipeline.schedule, place_stages(context.spec, range(_STAGES)), lane)


def _sharding(spec: WorkloadSpec, stages: Sequence[Stage]) -> Iterator[ExpectedCollective]:
    """m + 1 all-gathers: before every forward and backward, but a backward leaves the parameters to the next forward.

    Under 1F1B a stage forwards some micro-batches, goes backward and forward in turn, then finishes backward:
    each forward before the first backward gathers, and each backward that follows a forward.
    """
    for stage, group in zip(stages, _DATA_GROUPS, strict=True):
        shapes = stage.shapes(spec)
        for name, held in fsdp.sharded_groups(spec, shapes).items():
            whole = fsdp.gathered_bytes(spec, _DATA, {each: shapes[each] for each in held})
            for kind, what, count in (
                (Kind.ALL_GATHER, "parameters", spec.micro_batches + 1),
                (Kind.REDUCE_SCATTER, "gradients", 1),
            ):
                yield collective(kind, Axis.DATA, group, f"{what} of {name}", count=count, each=whole)


STRATEGIES = (PipelineZero3(),)
