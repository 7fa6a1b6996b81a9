"""FSDP2 × tensor parallelism on 4 ranks: 2 replicas of each micro-batch's halves, every matrix cut over 2 ranks of one.

Nothing of its own: tensor.py cuts the model along one dimension of a mesh, fsdp.py shards the parts along the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shardscope.strategies import fsdp, tensor
from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, missing, parameter_shapes

if TYPE_CHECKING:
    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Zero3Tensor"]

_DATA, _TENSOR = 2, 2  # rank = data · 2 + tensor: the ranks of one tensor group are neighbours
_TENSOR_GROUPS = ((0, 1), (2, 3))
_DATA_GROUPS = ((0, 2), (1, 3))


class Zero3Tensor:
    """zero3 along the data axis of what tensor leaves on each rank."""

    name = "zero3_tensor"
    display_name = "ZeRO-3 × tensor parallel"
    shards: tuple[str, ...] = ("batch", "optimizer_state", "gradients", "parameters", "matrices")
    defaults: Mapping[str, Any] = {}
    memory_formula = "about 16/n bytes per parameter (norms, some biases and positions: 16 over the data ranks)"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """On 4 ranks, where both parts apply on 2."""
        if world_size != _DATA * _TENSOR:
            return f"is laid out for 4 ranks, 2 data × 2 tensor; there are {world_size}"
        if (reason := missing(spec, "tensor_parallel_plan")) is not None:
            return reason
        sizes = {**tensor.cut_sizes(spec), "micro-batch size": spec.micro_batch_size}
        return undivided(_TENSOR, sizes)

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """The parts' plans: tensor's with half the samples in each group, zero3's with half of each cut matrix."""
        shapes = {
            name: tensor.local_shape(spec, name, shape, _TENSOR) for name, shape in parameter_shapes(spec).items()
        }
        state = []
        for rank in range(world_size):
            held = [fsdp.shard_elements(shape, rank // _TENSOR, _DATA) for shape in shapes.values()]
            state.append(rank_state(spec, rank, parameters=held, gradients=held, optimized=held))
        half = msgspec.structs.replace(spec, global_batch=spec.global_batch // _DATA)
        lines = [line for group in _TENSOR_GROUPS for line in tensor.communication(half, group)]
        lines += _sharding(spec, shapes)
        active = activation_bytes(half, half.micro_batch_size, layers=spec.layers, tensor=_TENSOR)
        return make_plan(spec, state, lines, activation_bytes=(active,) * world_size)

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop + parallelize_module on one dimension of the mesh + fully_shard on the other."""
        from torch.distributed.device_mesh import init_device_mesh

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer, mean_over_ranks

        mesh = init_device_mesh(context.device.type, (_DATA, _TENSOR), mesh_dim_names=("data", "tensor"))
        model = build_model(context.spec).to(context.device)
        tensor.parallelize(model, mesh["tensor"], context.spec)
        fsdp.shard(model, mesh["data"], reshard=True)
        return Loop(
            spec=context.spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), context.spec),
            device=context.device,
            group_axes={
                **dict.fromkeys(_TENSOR_GROUPS, Axis.TENSOR),
                **dict.fromkeys(_DATA_GROUPS, Axis.DATA),
            },
            replicas=_DATA,
            replica=context.rank // _TENSOR,
            after_request=lambda: fsdp.give_back(model),
            share=mean_over_ranks,
        )


def _sharding(spec: WorkloadSpec, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[ExpectedCollective]:
    for name, held in fsdp.sharded_groups(spec, shapes).items():
        whole = fsdp.gathered_bytes(spec, _DATA, {each: shapes[each] for each in held})
        for group in _DATA_GROUPS:
            for kind, what, times in (
                (Kind.ALL_GATHER, "parameters", 2),
                (Kind.REDUCE_SCATTER, "gradients", 1),
            ):
                count = times * spec.micro_batches
                yield collective(kind, Axis.DATA, group, f"{what} of {name}", count=count, each=whole)


STRATEGIES = (Zero3Tensor(),)
