"""Pipeline parallelism: each rank holds consecutive layers; micro-batches stream through them (GPipe or 1F1B)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import (
    activation_bytes,
    block_flops,
    element_size,
    head_flops,
    numel,
    parameter_shapes,
    stage_names,
)

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Pipeline", "stage_layers"]


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


class Pipeline:
    """One stage per rank, under one of torch.distributed.pipelining's schedules."""

    shards: tuple[str, ...] = ("layers",)
    defaults: Mapping[str, Any] = {}
    memory_formula = "16 bytes per parameter of the rank's own stage"

    def __init__(self, *, name: str, display_name: str, schedule: str) -> None:
        self.name = name
        self.display_name = display_name
        self._schedule = schedule  # class in torch.distributed.pipelining

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """At least one layer per stage and, for 1F1B, one micro-batch per stage."""
        if world_size < 2:
            return "needs at least 2 ranks"
        if spec.layers < world_size:
            return f"layers {spec.layers} cannot be divided among {world_size} ranks"
        if self._schedule == "Schedule1F1B" and spec.micro_batches < world_size:
            return f"micro_batches {spec.micro_batches} are fewer than the {world_size} stages that 1F1B keeps busy"
        return None

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Each rank holds its stage; one message each way per micro-batch and boundary."""
        state, active = [], []
        for stage, layers in enumerate(stage_layers(spec, world_size)):
            shapes = stage_names(spec, layers, first=stage == 0, last=stage == world_size - 1)
            held = [numel(shape) for shape in shapes.values()]
            state.append(rank_state(spec, stage, parameters=held, gradients=held, optimized=held))
            in_flight = self._in_flight(spec, stage, world_size)
            active.append(in_flight * activation_bytes(spec, spec.micro_batch_size, layers=len(layers)))
        return make_plan(
            spec,
            state,
            _messages(spec, world_size),
            stages=(world(world_size),),
            # (p − 1)/(m + p − 1): GPipe, and 1F1B as well (Megatron, arXiv 2104.04473, section 2.2, as a share of the
            # whole time).
            bubble_fraction=(world_size - 1) / (spec.micro_batches + world_size - 1),
            activation_bytes=tuple(active),
        )

    def _in_flight(self, spec: WorkloadSpec, stage: int, stages: int) -> int:
        """Micro-batches whose activations a stage holds at once: all of them under GPipe, p − stage under 1F1B."""
        return spec.micro_batches if self._schedule == "ScheduleGPipe" else min(spec.micro_batches, stages - stage)

    def build(self, context: BuildContext) -> Trainer:
        """This rank's part of the model under the schedule."""
        return _PipelineTrainer(context, self._schedule)


def _messages(spec: WorkloadSpec, stages: int) -> list[ExpectedCollective]:
    each = spec.micro_batch_size * spec.sequence_length * spec.hidden * element_size(spec)
    lines = []
    for left in range(stages - 1):
        for pair, what in (((left, left + 1), "activations"), ((left + 1, left), "activation gradients")):
            lines.append(collective(Kind.SEND_RECEIVE, Axis.PIPELINE, pair, what, count=spec.micro_batches, each=each))
    return lines


def _marked_stage(*arguments: Any, **options: Any) -> Any:
    """A PipelineStage whose micro-batch compute, and only that, is marked in the trace (1F1B itself marks nothing)."""
    from torch.distributed.pipelining import PipelineStage

    from shardscope.workload.training import mark

    class MarkedStage(PipelineStage):
        def forward_one_chunk(self, fwd_chunk_id: int, *rest: Any, **named: Any) -> Any:
            with mark("forward", fwd_chunk_id):
                return super().forward_one_chunk(fwd_chunk_id, *rest, **named)

        def backward_one_chunk(self, bwd_chunk_id: int, *rest: Any, **named: Any) -> Any:
            with mark("backward", bwd_chunk_id):
                return super().backward_one_chunk(bwd_chunk_id, *rest, **named)

    return MarkedStage(*arguments, **options)


class _PipelineTrainer:
    """One stage of the pipeline on this rank."""

    def __init__(self, context: BuildContext, schedule: str) -> None:
        from torch.distributed import pipelining

        from shardscope.workload.model import build_model
        from shardscope.workload.training import make_optimizer

        spec = self.spec = context.spec
        self.device, self.rank, self.last = context.device, context.rank, context.world_size - 1
        self.layers = stage_layers(spec, context.world_size)
        self.model = build_model(spec, self.layers[self.rank], first=self.rank == 0, last=self.rank == self.last).to(
            self.device
        )
        self.optimizer = make_optimizer(self.model.parameters(), spec)
        self.losses: list[torch.Tensor] = []
        stage = _marked_stage(
            self.model,
            self.rank,
            context.world_size,
            self.device,
            input_args=self._example(self.rank == 0, spec.hidden),
            output_args=self._example(False, spec.vocabulary if self.rank == self.last else spec.hidden),
        )
        # The loss is divided by the number of micro-batches, so the schedule need not rescale all gradients.
        self.schedule: Any = getattr(pipelining, schedule)(
            stage, spec.micro_batches, loss_fn=self._micro_batch_loss, scale_grads=False
        )

    def _example(self, tokens: bool, width: int) -> torch.Tensor:
        """What crosses a boundary; given in advance, the stages need not exchange shapes."""
        import torch

        size = (self.spec.micro_batch_size, self.spec.sequence_length)
        if tokens:
            return torch.empty(size, dtype=torch.int64, device="meta")
        return torch.empty((*size, width), dtype=getattr(torch, self.spec.dtype), device="meta", requires_grad=True)

    def _micro_batch_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from shardscope.workload.training import mark, micro_batch_loss

        with mark("forward", len(self.losses)):
            loss = micro_batch_loss(logits, targets) / self.spec.micro_batches
        self.losses.append(loss.detach())
        return loss

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        import torch
        import torch.distributed as dist

        self.optimizer.zero_grad(set_to_none=True)
        self.losses.clear()
        first = (inputs.to(self.device),) if self.rank == 0 else ()
        wanted = targets.to(self.device) if self.rank == self.last else None
        self.schedule.step(*first, target=wanted, return_outputs=False)
        if not share_loss and self.rank != self.last:
            return math.nan
        loss = torch.stack(self.losses).sum() if self.losses else torch.zeros((), device=self.device)
        if share_loss:
            dist.broadcast(loss, self.last)
        return float(loss)

    def optimizer_step(self) -> None:
        from shardscope.workload.training import mark

        with mark("optimizer"):
            self.optimizer.step()

    def request(self, inputs: torch.Tensor) -> None:
        """One sample through all stages in turn."""
        import torch
        import torch.distributed as dist

        with torch.no_grad():
            x = inputs.to(self.device)
            if self.rank > 0:
                shape = (*inputs.shape, self.spec.hidden)
                x = torch.empty(shape, dtype=getattr(torch, self.spec.dtype), device=self.device)
                dist.recv(x, self.rank - 1)
            x = self.model(x)
            if self.rank < self.last:
                dist.send(x, self.rank + 1)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Each stage sends its gradients to rank 0."""
        import torch
        import torch.distributed as dist

        mine = dict(self.model.named_parameters())
        owners: dict[str, int] = {}
        for stage, layers in enumerate(self.layers):
            names = stage_names(self.spec, layers, first=stage == 0, last=stage == self.last)
            owners |= dict.fromkeys(names, stage)
        for name, shape in parameter_shapes(self.spec).items():
            owner, gradient = owners[name], mine[name].grad if name in mine else None
            if owner > 0 and self.rank == owner:
                # A missing gradient travels as NaN: it must not look right on rank 0.
                sent = torch.full(shape, math.nan) if gradient is None else gradient
                dist.send(sent.to(self.device).contiguous(), 0)
            elif owner > 0 and self.rank == 0:
                gradient = torch.empty(shape, dtype=getattr(torch, self.spec.dtype), device=self.device)
                dist.recv(gradient, owner)
            yield name, gradient if self.rank == 0 else None

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        from shardscope.workload.training import local_state

        return local_state(self.model, self.optimizer)

    def axes(self) -> Mapping[tuple[int, ...], str]:
        return {world(self.last + 1): Axis.PIPELINE}

    def close(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
        vars(self).clear()  # the schedule and this object hold each other


STRATEGIES = (
    Pipeline(name="pipeline_gpipe", display_name="pipeline (GPipe)", schedule="ScheduleGPipe"),
    Pipeline(name="pipeline_1f1b", display_name="pipeline (1F1B)", schedule="Schedule1F1B"),
)
