"""The gate's negative control: torch 2.13 gives wrong gradients here, without an error, and the losses hardly show it.

The zero-bubble schedule computes the weights' gradients by torch.autograd.grad, which runs none of the hooks in which
DDP averages them over the replicas. fully_shard has the schedule reduce them itself, so pipeline × FSDP2 is right.
"""

from collections.abc import Mapping
from typing import Any

from shardscope.measure.record import Plan
from shardscope.strategies.accounting import make_plan, rank_state
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.pipeline import ZeroBubble, messages
from shardscope.strategies.pipeline_trainer import Lane, PipelineTrainer
from shardscope.vocabulary import Axis
from shardscope.workload.shapes import numel
from shardscope.workload.spec import WorkloadSpec

PIPELINES, REPLICAS = ((0, 2), (1, 3)), ((0, 1), (2, 3))


class ZeroBubbleDDP(ZeroBubble):
    """Two pipelines of two ranks; DDP is to average the stages' gradients over the two."""

    remedy = "use pipeline × FSDP2 (pipeline_zero3)"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        return None if world_size == 4 else "needs 4 ranks"

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        stages = self.stages(spec, 2, parameters)
        state = []
        for rank in range(4):
            mine = [stage for stage in stages if stage.place == rank // 2]
            held = [numel(shape) for stage in mine for shape in stage.shapes(spec).values()]
            state.append(rank_state(spec, rank, parameters=held, gradients=held, optimized=held))
        lines = [line for ranks in PIPELINES for line in messages(spec, stages, ranks, spec.micro_batch_size // 2)]
        return make_plan(spec, state, lines, stages=PIPELINES, bubble_fraction=self.bubble(2, spec.micro_batches, 2))

    def build(self, context: BuildContext) -> Trainer:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.nn.parallel import DistributedDataParallel

        mesh = init_device_mesh(context.device.type, (2, 2), mesh_dim_names=("pipeline", "data"))
        replica = context.rank % 2
        lane = Lane(
            ranks=PIPELINES[replica],
            replica=replica,
            replicas=2,
            group=mesh.get_group("pipeline"),
            wrap=lambda part: DistributedDataParallel(part, process_group=mesh.get_group("data")),
            axes={**dict.fromkeys(PIPELINES, Axis.PIPELINE), **dict.fromkeys(REPLICAS, Axis.DATA)},
        )
        return PipelineTrainer(context, self.schedule, self.stages(context.spec, 2, context.parameters), lane)


ZBV_DDP = ZeroBubbleDDP(name="zbv_ddp", display_name="ZBV × DDP", schedule="ScheduleZBVZeroBubble")
