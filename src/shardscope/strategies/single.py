"""The reference: the plain loop on one rank, with one rank's threads, while the others wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import make_plan, rank_state
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.workload.shapes import activation_bytes, numel, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Single"]


class Single:
    """All of the model and all of the batch on rank 0."""

    name = "single"
    display_name = "single process"
    shards: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}
    memory_formula = "16 bytes per parameter on rank 0, nothing elsewhere"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Runs everywhere."""
        return None

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Everything on rank 0; no communication."""
        elements = [numel(shape) for shape in parameter_shapes(spec).values()]
        state = [rank_state(spec, 0, parameters=elements, gradients=elements, optimized=elements)]
        state += [rank_state(spec, rank, parameters=(), gradients=(), optimized=()) for rank in range(1, world_size)]
        active = activation_bytes(spec, spec.micro_batch_size, layers=spec.layers)
        return make_plan(spec, state, activation_bytes=(active,) + (0,) * (world_size - 1))

    def build(self, context: BuildContext) -> Trainer:
        """The plain loop on rank 0."""
        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer

        if context.rank != 0:
            return _Idle(context)
        model = build_model(context.spec).to(context.device)
        return Loop(
            spec=context.spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), context.spec),
            device=context.device,
            group_axes={},
            share=lambda loss: _broadcast(loss, context.world_size),
        )


def _broadcast(loss: torch.Tensor, world_size: int) -> torch.Tensor:
    import torch.distributed as dist

    if world_size > 1:
        dist.broadcast(loss, 0)
    return loss


@dataclass
class _Idle:
    """A rank without work. It waits wherever the ranks meet next."""

    context: BuildContext

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        import torch

        if not share_loss:
            return math.nan
        return float(_broadcast(torch.zeros((), device=self.context.device), self.context.world_size))

    def optimizer_step(self) -> None:
        return None

    def request(self, inputs: torch.Tensor) -> None:
        return None

    def gradients(self) -> Iterable[tuple[str, torch.Tensor | None]]:
        return ((name, None) for name in parameter_shapes(self.context.spec))

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        return [], [], []

    def axes(self) -> Mapping[tuple[int, ...], str]:
        return {}

    def close(self) -> None:
        return None


STRATEGIES = (Single(),)
