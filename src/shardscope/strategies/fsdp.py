"""zero2 and zero3: torch's FSDP2 on every block and on the root, parameters kept for the step or gathered each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import (
    activation_bytes,
    block_shapes,
    element_size,
    numel,
    parameter_shapes,
    stage_names,
)

if TYPE_CHECKING:
    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["FSDP", "STRATEGIES"]


class FSDP:
    """fully_shard, with or without giving the gathered parameters back after forward."""

    defaults: Mapping[str, Any] = {}

    def __init__(self, *, name: str, display_name: str, shards: tuple[str, ...], formula: str, reshard: bool) -> None:
        self.name = name
        self.display_name = display_name
        self.shards = shards
        self.memory_formula = formula
        self._reshard = reshard

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Each rank takes an equal part of every micro-batch."""
        return undivided(world_size, {"micro-batch size": spec.micro_batch_size})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """State: 1/n of everything (between steps). Communication: see _communication."""
        shapes = parameter_shapes(spec).values()
        state = []
        for rank in range(world_size):
            held = [_shard_elements(shape, rank, world_size) for shape in shapes]
            state.append(rank_state(spec, rank, parameters=held, gradients=held, optimized=held))
        active = activation_bytes(spec, spec.micro_batch_size // world_size, layers=spec.layers)
        groups = {f"block {layer}": block_shapes(spec, layer) for layer in range(spec.layers)}
        groups["root"] = stage_names(spec, (), first=True, last=True)
        collectives = [
            line for name, group in groups.items() for line in self._communication(spec, world_size, name, group)
        ]
        return make_plan(spec, state, collectives, activation_bytes=(active,) * world_size)

    def _communication(
        self, spec: WorkloadSpec, world_size: int, name: str, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[ExpectedCollective, ...]:
        """All-gather: once per step, or before forward and backward of each micro-batch. Reduce-scatter: one each.

        Every tensor is padded to a multiple of n rows.
        """
        whole = element_size(spec) * sum(
            ceil(shape[0] / world_size) * world_size * numel(shape[1:]) for shape in shapes.values()
        )
        gathers = 2 * spec.micro_batches if self._reshard else 1
        ranks = world(world_size)
        return (
            collective(Kind.ALL_GATHER, Axis.DATA, ranks, f"parameters of {name}", count=gathers, each=whole),
            collective(
                Kind.REDUCE_SCATTER, Axis.DATA, ranks, f"gradients of {name}", count=spec.micro_batches, each=whole
            ),
        )

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop + fully_shard."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer, mean_over_ranks

        spec = context.spec
        # An explicit mesh: by default torch would take the GPUs of a machine that has some, even for a CPU run.
        mesh = init_device_mesh(context.device.type, (context.world_size,), mesh_dim_names=("data",))
        model: Any = build_model(spec).to(context.device)
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh, reshard_after_forward=self._reshard)
        # The root too, else torch leaves it gathered between forward and backward.
        fully_shard(model, mesh=mesh, reshard_after_forward=self._reshard)

        def around_micro_batch(index: int) -> AbstractContextManager[None]:
            return _reshard_after_backward(model, self._reshard or index == spec.micro_batches - 1)

        def after_request() -> None:
            for module in (*model.blocks.values(), model):
                module.reshard()

        return Loop(
            spec=spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), spec),
            device=context.device,
            group_axes={world(context.world_size): Axis.DATA},
            replicas=context.world_size,
            replica=context.rank,
            around_micro_batch=around_micro_batch,
            after_request=after_request,
            share=mean_over_ranks,
        )


@contextmanager
def _reshard_after_backward(model: Any, reshard: bool) -> Iterator[None]:
    model.set_reshard_after_backward(reshard)
    yield


def _shard_elements(shape: tuple[int, ...], rank: int, ranks: int) -> int:
    """Elements of one rank's shard: dimension 0 in chunks of ⌈d/n⌉ rows, the last ranks may get fewer or none."""
    rows = ceil(shape[0] / ranks)
    return max(0, min(rows, shape[0] - rank * rows)) * numel(shape[1:])


STRATEGIES = (
    FSDP(
        name="zero2",
        display_name="ZeRO-2 (FSDP2, parameters kept for the step)",
        shards=("batch", "optimizer_state", "gradients"),
        formula="4 + 12/n bytes per parameter inside the step, 16/n at its end",
        reshard=False,
    ),
    FSDP(
        name="zero3",
        display_name="ZeRO-3 (FSDP2)",
        shards=("batch", "optimizer_state", "gradients", "parameters"),
        formula="16/n bytes per parameter, plus the largest gathered group inside the step",
        reshard=True,
    ),
)
