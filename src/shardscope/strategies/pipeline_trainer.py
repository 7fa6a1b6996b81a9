"""The stages of a pipeline that one rank holds, run by one of torch.distributed.pipelining's schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import world
from shardscope.strategies.base import BuildContext
from shardscope.vocabulary import Axis
from shardscope.workload.shapes import boundary_shape, parameter_shapes, stage_names

if TYPE_CHECKING:
    import torch

    from shardscope.workload.spec import WorkloadSpec

__all__ = ["Lane", "PipelineTrainer", "Stage"]


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of the model, and the place in the pipeline of the rank that holds them."""

    index: int
    place: int
    layers: range
    first: bool
    last: bool

    def shapes(self, spec: WorkloadSpec) -> dict[str, tuple[int, ...]]:
        """Parameters of this stage by the plain model's names."""
        return stage_names(spec, self.layers, first=self.first, last=self.last)


@dataclass(frozen=True)
class Lane:
    """Where a rank stands when several pipelines run side by side on parts of each micro-batch; by default one does."""

    ranks: tuple[int, ...]  # of this pipeline, by place
    replica: int = 0
    replicas: int = 1
    group: Any = None  # process group of `ranks`; None: the world
    wrap: Callable[[Any], Any] | None = None  # a stage's part of the model → what runs in its place
    axes: Mapping[tuple[int, ...], str] | None = None
    after_request: Callable[[Any], None] | None = None  # done to each part


class PipelineTrainer:
    """All stages of one rank (strategies.base.Trainer)."""

    def __init__(self, context: BuildContext, schedule: str, stages: Sequence[Stage], lane: Lane | None = None) -> None:
        from torch import nn
        from torch.distributed import pipelining

        from shardscope.workload.model import build_stage, loss_of
        from shardscope.workload.training import make_optimizer

        self.spec, self.device, self.rank = context.spec, context.device, context.rank
        self.stages = stages
        self.lane = lane or Lane(world(context.world_size))
        self.place = self.lane.ranks.index(self.rank)
        mine = [stage for stage in stages if stage.place == self.place]
        self.parts: dict[int, Any] = {}  # stage index → its part of the model
        self.runs: dict[int, Any] = {}  # the same, or what wraps it
        for stage in mine:
            part = build_stage(self.spec, stage.layers, first=stage.first, last=stage.last).to(self.device)
            self.parts[stage.index] = part
            self.runs[stage.index] = part if self.lane.wrap is None else self.lane.wrap(part)
        self.model = nn.ModuleList(self.parts.values())
        self.optimizer = make_optimizer(self.model.parameters(), self.spec)
        self.loss = loss_of(self.parts[mine[-1].index])
        self.losses: list[torch.Tensor] = []
        marked = [_marked_stage(self.runs[stage.index], stage.index, len(stages), self.device,
                                input_args=self._example(stage.index), output_args=self._example(stage.index + 1),
                                group=self.lane.group)
                  for stage in mine]  # fmt: skip
        made: Any = getattr(pipelining, schedule)
        several = issubclass(made, pipelining.schedules.PipelineScheduleMulti)
        # The loss is divided by the number of micro-batches, so the schedule need not rescale all gradients.
        self.schedule = made(
            marked if several else marked[0], self.spec.micro_batches, loss_fn=self._micro_batch_loss, scale_grads=False
        )

    def _example(self, boundary: int) -> torch.Tensor:
        """What comes before stage `boundary`; given in advance, the stages need not exchange shapes."""
        import torch

        spec = self.spec
        samples = spec.micro_batch_size // self.lane.replicas
        if boundary == 0:
            return torch.empty((samples, spec.sequence_length), dtype=torch.int64, device="meta")
        last = boundary == len(self.stages)
        shape = (samples, spec.sequence_length, spec.vocabulary) if last else boundary_shape(spec, samples)
        return torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta", requires_grad=True)

    def _micro_batch_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from shardscope.workload.training import mark

        with mark("forward", len(self.losses)):
            loss = self.loss(logits, targets) / self.spec.micro_batches
        self.losses.append(loss.detach())
        return loss

    def _own_part(self, batch: torch.Tensor) -> torch.Tensor:
        """This pipeline's samples of each micro-batch, one micro-batch after another."""
        import torch

        if self.lane.replicas == 1:
            return batch.to(self.device)
        parts = [part.chunk(self.lane.replicas)[self.lane.replica] for part in batch.chunk(self.spec.micro_batches)]
        return torch.cat(parts).to(self.device)

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        import torch
        import torch.distributed as dist

        self.optimizer.zero_grad(set_to_none=True)
        self.losses.clear()
        first = (self._own_part(inputs),) if 0 in self.parts else ()
        last = len(self.stages) - 1 in self.parts
        self.schedule.step(*first, target=self._own_part(targets) if last else None, return_outputs=False)
        if not share_loss and not last:
            return math.nan
        loss = torch.stack(self.losses).sum() if last else torch.zeros((), device=self.device)
        if share_loss:  # only the last stages have something to add
            dist.all_reduce(loss)
            loss /= self.lane.replicas
        return float(loss)

    def optimizer_step(self) -> None:
        from shardscope.workload.training import mark

        with mark("optimizer"):
            self.optimizer.step()

    def request(self, inputs: torch.Tensor) -> None:
        """One sample through all stages in turn."""
        import torch
        import torch.distributed as dist

        x = inputs.to(self.device)
        shape = boundary_shape(self.spec, len(inputs))
        with torch.no_grad():
            for stage in self.stages:
                part = self.parts.get(stage.index)
                if part is None:
                    continue
                before, after = stage.index - 1, stage.index + 1
                if not stage.first and before not in self.parts:
                    x = torch.empty(shape, dtype=getattr(torch, self.spec.dtype), device=self.device)
                    dist.recv(x, self._holder(before))
                x = self.runs[stage.index](x)
                if not stage.last and after not in self.parts:
                    dist.send(x, self._holder(after))
                if self.lane.after_request is not None:
                    self.lane.after_request(part)

    def _holder(self, index: int) -> int:
        """Global rank that holds a stage of this pipeline."""
        return self.lane.ranks[self.stages[index].place]

    def gradients(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Each stage sends its gradients to rank 0."""
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor

        from shardscope.workload.model import named

        mine = {name: parameter for part in self.parts.values() for name, parameter in named(part)}
        places = {name: stage.place for stage in self.stages for name in stage.shapes(self.spec)}
        for name, shape in parameter_shapes(self.spec).items():
            gradient = mine[name].grad if name in mine else None
            if isinstance(gradient, DTensor):
                gradient = gradient.full_tensor()
            if self.lane.replica == 0 and places[name] > 0:
                if self.place == places[name]:
                    # A missing gradient travels as NaN: it must not look right on rank 0.
                    sent = torch.full(shape, math.nan) if gradient is None else gradient
                    dist.send(sent.to(self.device).contiguous(), 0)
                elif self.rank == 0:
                    gradient = torch.empty(shape, dtype=getattr(torch, self.spec.dtype), device=self.device)
                    dist.recv(gradient, self.lane.ranks[places[name]])
            yield name, gradient if self.rank == 0 else None

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        from shardscope.workload.training import local_state

        return local_state(self.model, self.optimizer)

    def axes(self) -> Mapping[tuple[int, ...], str]:
        return {self.lane.ranks: Axis.PIPELINE} if self.lane.axes is None else self.lane.axes

    def close(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
        vars(self).clear()  # the schedule and this object hold each other


def _marked_stage(*arguments: Any, **options: Any) -> Any:
    """A PipelineStage whose micro-batch compute, and only that, is marked in the trace (most schedules mark nothing).

    Where a schedule splits the backward, the part for the inputs and the part for the weights are both marked.
    """
    from torch.distributed.pipelining import PipelineStage

    from shardscope.workload.training import mark

    class MarkedStage(PipelineStage):
        def forward_one_chunk(self, fwd_chunk_id: int, *rest: Any, **named: Any) -> Any:
            with mark("forward", fwd_chunk_id):
                return super().forward_one_chunk(fwd_chunk_id, *rest, **named)

        def backward_one_chunk(self, bwd_chunk_id: int, *rest: Any, **named: Any) -> Any:
            with mark("backward", bwd_chunk_id):
                return super().backward_one_chunk(bwd_chunk_id, *rest, **named)

        def backward_weight_one_chunk(self, bwd_chunk_id: int, *rest: Any, **named: Any) -> Any:
            with mark("backward", bwd_chunk_id):
                return super().backward_weight_one_chunk(bwd_chunk_id, *rest, **named)

    return MarkedStage(*arguments, **options)
