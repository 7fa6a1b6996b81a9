"""zero2 and zero3: torch's FSDP2 on every block and on the root, parameters kept for the step or gathered each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, missing, numel, outline, parameter_shapes

if TYPE_CHECKING:
    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["FSDP", "STRATEGIES", "gathered_bytes", "give_back", "shard", "shard_elements", "sharded_groups"]


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
        """Blocks are the groups that are gathered; each rank takes an equal part of every micro-batch."""
        return missing(spec, "blocks") or undivided(world_size, {"micro-batch size": spec.micro_batch_size})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """State: 1/n of everything (between steps). Communication: see _communication."""
        shapes = parameter_shapes(spec).values()
        state = []
        for rank in range(world_size):
            held = [shard_elements(shape, rank, world_size) for shape in shapes]
            state.append(rank_state(spec, rank, parameters=held, gradients=held, optimized=held))
        active = activation_bytes(spec, spec.micro_batch_size // world_size, layers=spec.layers)
        named_shapes = parameter_shapes(spec)
        collectives = [
            line
            for group, names in sharded_groups(spec, named_shapes).items()
            for line in self._communication(spec, world_size, group, {name: named_shapes[name] for name in names})
        ]
        return make_plan(spec, state, collectives, activation_bytes=(active,) * world_size)

    def _communication(
        self, spec: WorkloadSpec, world_size: int, name: str, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[ExpectedCollective, ...]:
        """All-gather: once per step, or before forward and backward of each micro-batch. Reduce-scatter: one each."""
        whole = gathered_bytes(spec, world_size, shapes)
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

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer, mean_over_ranks

        spec = context.spec
        # An explicit mesh: by default torch would take the GPUs of a machine that has some, even for a CPU run.
        mesh = init_device_mesh(context.device.type, (context.world_size,), mesh_dim_names=("data",))
        model: Any = build_model(spec).to(context.device)
        shard(model, mesh, reshard=self._reshard)

        def around_micro_batch(index: int) -> AbstractContextManager[None]:
            return _reshard_after_backward(model, self._reshard or index == spec.micro_batches - 1)

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
            after_request=lambda: give_back(model),
            share=mean_over_ranks,
        )


def shard(model: Any, mesh: Any, *, reshard: bool) -> None:
    """fully_shard on every block and on the root. reshard: give the gathered parameters back after forward."""
    from torch.distributed.fsdp import fully_shard

    from shardscope.workload.model import blocks_of

    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    # The root too, else torch leaves it gathered between forward and backward.
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)


def give_back(model: Any) -> None:
    """Give all gathered parameters back, as after a forward without a backward."""
    from shardscope.workload.model import blocks_of

    for module in (*blocks_of(model), model):
        module.reshard()


@contextmanager
def _reshard_after_backward(model: Any, reshard: bool) -> Iterator[None]:
    model.set_reshard_after_backward(reshard)
    yield


def sharded_groups(spec: WorkloadSpec, names: Iterable[str]) -> dict[str, list[str]]:
    """The parameters `names` by the group that is gathered together, "block 3" or "root"; no empty groups."""
    wanted, groups = list(names), dict[str, list[str]]()
    owner = {name: f"block {layer}" for layer, block in enumerate(outline(spec).blocks) for name in block}
    for name in wanted:
        groups.setdefault(owner.get(name, "root"), []).append(name)
    root = groups.pop("root", None)
    return groups if root is None else {**groups, "root": root}


def gathered_bytes(spec: WorkloadSpec, ranks: int, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of one group gathered: every tensor is padded to a multiple of n rows."""
    rows = sum(ceil(shape[0] / ranks) * ranks * numel(shape[1:]) for shape in shapes.values())
    return element_size(spec) * rows


def shard_elements(shape: tuple[int, ...], rank: int, ranks: int) -> int:
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
