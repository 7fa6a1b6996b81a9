"""Data parallelism: every rank holds the whole model and 1/n of each micro-batch; gradients are averaged in buckets.

zero1 is the same with the optimizer's state divided among the ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, gradient_order, numel, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["DDP", "STRATEGIES", "Zero1", "gradient_order"]

_MIB = 1024 * 1024


def bucket_sizes(spec: WorkloadSpec, bucket_cap_mb: float, skipped: Collection[str] = ()) -> list[int]:
    """Bytes of each of the reducer's buckets, as it rebuilds them after the first backward.

    torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size: tensors join the open bucket in
    gradient order, and a bucket closes once it has reached the cap (so it may exceed it by its last tensor).
    skipped: names of parameters that DDP is told to leave alone.
    """
    shapes, cap, size = parameter_shapes(spec), int(bucket_cap_mb * _MIB), element_size(spec)
    buckets, filled = [], 0
    for name in (name for name in gradient_order(spec) if name not in skipped):
        filled += numel(shapes[name]) * size
        if filled >= cap:
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets


class DDP:
    """torch's DistributedDataParallel, gradients accumulated locally until the last micro-batch."""

    name = "ddp"
    display_name = "DDP"
    shards: tuple[str, ...] = ("batch",)
    # 2 MiB hides about half of the default workload's all-reduces; torch's 25 makes one bucket and hides nothing.
    defaults: Mapping[str, Any] = {"bucket_cap_mb": 2.0}
    memory_formula = "16 bytes per parameter"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Each rank takes an equal part of every micro-batch."""
        return undivided(world_size, {"micro-batch size": spec.micro_batch_size})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """One all-reduce per bucket."""
        elements = [numel(shape) for shape in parameter_shapes(spec).values()]
        state = [
            rank_state(spec, rank, parameters=elements, gradients=elements, optimized=elements)
            for rank in range(world_size)
        ]
        return make_plan(
            spec, state, self._reduction(spec, world_size, parameters), activation_bytes=_activations(spec, world_size)
        )

    def _reduction(
        self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]
    ) -> tuple[ExpectedCollective, ...]:
        buckets: dict[int, int] = {}
        for size in bucket_sizes(spec, parameters["bucket_cap_mb"]):
            buckets[size] = buckets.get(size, 0) + 1
        return tuple(
            collective(Kind.ALL_REDUCE, Axis.DATA, world(world_size), "gradient bucket", count=count, each=size)
            for size, count in buckets.items()
        )

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop + gradient buckets, reduced during the last micro-batch's backward only."""
        from torch.nn.parallel import DistributedDataParallel

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, mean_over_ranks

        spec = context.spec
        model = build_model(spec).to(context.device)
        replicated = DistributedDataParallel(
            model,
            gradient_as_bucket_view=True,
            bucket_cap_mb=context.parameters["bucket_cap_mb"],
            forward_sync_buffers=False,  # built alike on every rank, and no strategy changes them
        )
        optimizer, held_state = self._optimizer(model, spec)
        return Loop(
            spec=spec,
            model=model,
            forward=replicated,
            optimizer=optimizer,
            device=context.device,
            group_axes={world(context.world_size): Axis.DATA},
            replicas=context.world_size,
            replica=context.rank,
            around_micro_batch=lambda i: nullcontext() if i == spec.micro_batches - 1 else replicated.no_sync(),
            # Freed gradients would be made anew beside the buckets while no_sync accumulates: 4 bytes per parameter.
            clear_gradients=lambda optimizer: optimizer.zero_grad(set_to_none=False),
            share=mean_over_ranks,
            held_state=held_state,
        )

    def _optimizer(self, model: torch.nn.Module, spec: WorkloadSpec) -> tuple[torch.optim.Optimizer, Any]:
        from shardscope.workload.training import make_optimizer

        return make_optimizer(model.parameters(), spec), None


class Zero1(DDP):
    """ddp + torch's ZeroRedundancyOptimizer: each rank updates some parameters and broadcasts them."""

    name = "zero1"
    display_name = "ZeRO-1 (torch ZeroRedundancyOptimizer)"
    shards = ("batch", "optimizer_state")
    memory_formula = "8 + about 8/n bytes per parameter (whole tensors go to the emptiest rank)"

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """ddp's all-reduces, then one broadcast per rank: 1.5 times ddp's volume (DeepSpeed and Megatron move 1.0)."""
        elements = [numel(shape) for shape in parameter_shapes(spec).values()]
        parts = greedy_partition(elements, world_size)
        state = [
            rank_state(spec, rank, parameters=elements, gradients=elements, optimized=part)
            for rank, part in enumerate(parts)
        ]
        broadcasts = [
            collective(
                Kind.BROADCAST,
                Axis.DATA,
                world(world_size),
                f"parameters updated by rank {rank}",
                count=1,
                each=element_size(spec) * sum(part),
            )
            for rank, part in enumerate(parts)
        ]
        reduction = self._reduction(spec, world_size, parameters)
        return make_plan(spec, state, (*reduction, *broadcasts), activation_bytes=_activations(spec, world_size))

    def _optimizer(self, model: torch.nn.Module, spec: WorkloadSpec) -> tuple[torch.optim.Optimizer, Any]:
        import torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

        from shardscope.workload.training import optimizer_options

        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True,  # one broadcast per rank instead of one per parameter
            **optimizer_options(spec),
        )

        def held_state() -> list[torch.Tensor]:
            states: Iterable[dict[str, Any]] = optimizer.optim.state.values()
            return [value for state in states for value in state.values() if torch.is_tensor(value)]

        return optimizer, held_state


def greedy_partition(elements: list[int], ranks: int) -> list[list[int]]:
    """ZeroRedundancyOptimizer's partition: the largest tensor first, each to the rank with the fewest elements."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for size in sorted(elements, reverse=True):
        min(parts, key=sum).append(size)
    return parts


def _activations(spec: WorkloadSpec, world_size: int) -> tuple[int, ...]:
    each = activation_bytes(spec, spec.micro_batch_size // world_size, layers=spec.layers)
    return (each,) * world_size


STRATEGIES = (DDP(), Zero1())
