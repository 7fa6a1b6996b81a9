"""Tensor parallelism: each matrix is cut over the ranks; tensor_sequence also cuts what lies between the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, numel, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Tensor", "TensorSequence"]

_COLUMN = ("query", "key", "value", "up")  # weight and bias cut by output rows; in output and down only the weight is


class Tensor:
    """Megatron's cut: attention by heads, MLP by its wide dimension, embedding and head by vocabulary."""

    name = "tensor"
    display_name = "tensor parallel"
    shards: tuple[str, ...] = ("matrices",)
    defaults: Mapping[str, Any] = {}
    memory_formula = "about 16/n bytes per parameter (norms, some biases and positions are on every rank)"
    _sequence = False

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Heads, MLP width and vocabulary are cut in equal parts."""
        return undivided(world_size, self._cut_sizes(spec))

    def _cut_sizes(self, spec: WorkloadSpec) -> dict[str, int]:
        wide = spec.hidden * spec.mlp_ratio
        return {"heads": spec.heads, "MLP width": wide, "vocabulary": spec.vocabulary}

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """State: matrices over n. Communication: see _communication."""
        held = [
            numel(shape) // (world_size if self._is_cut(name) else 1) for name, shape in parameter_shapes(spec).items()
        ]
        state = [rank_state(spec, rank, parameters=held, gradients=held, optimized=held) for rank in range(world_size)]
        active = activation_bytes(
            spec, spec.micro_batch_size, layers=spec.layers, tensor=world_size, sequence=self._sequence
        )
        lines = self._communication(spec, world(world_size))
        return make_plan(spec, state, lines, activation_bytes=(active,) * world_size)

    def _is_cut(self, name: str) -> bool:
        *_, layer, kind = name.split(".")
        if layer == "position":
            return self._sequence
        return layer in (*_COLUMN, "token", "head") or (layer in ("output", "down") and kind == "weight")

    def _communication(self, spec: WorkloadSpec, group: tuple[int, ...]) -> list[ExpectedCollective]:
        """All-reduces of activations: 4 per layer and micro-batch, one each for the embedding and the head."""
        m, hidden = spec.micro_batches, _activation(spec, spec.hidden)
        return [
            collective(
                Kind.ALL_REDUCE,
                Axis.TENSOR,
                group,
                "outputs and input gradients of attention and MLP",
                count=4 * spec.layers * m,
                each=hidden,
            ),
            collective(Kind.ALL_REDUCE, Axis.TENSOR, group, "token embedding", count=m, each=hidden),
            collective(Kind.ALL_REDUCE, Axis.TENSOR, group, "input gradient of the head", count=m, each=hidden),
            _logits(spec, group),
        ]

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop + parallelize_module."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer

        mesh = init_device_mesh(context.device.type, (context.world_size,), mesh_dim_names=("tensor",))
        model = build_model(context.spec).to(context.device)
        parallelize_module(model, mesh, self._styles(context.spec))
        _cut_gradient(model.get_parameter("token.weight"))
        return Loop(
            spec=context.spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), context.spec),
            device=context.device,
            group_axes={world(context.world_size): Axis.TENSOR},
            after_backward=lambda: self._finish_gradients(model),
        )

    def _styles(self, spec: WorkloadSpec) -> dict[str, Any]:
        """How each submodule is cut. Between them activations are plain tensors, whole on every rank."""
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

        whole = Replicate()
        styles: dict[str, Any] = {
            "token": RowwiseParallel(input_layouts=whole),
            "head": ColwiseParallel(output_layouts=whole),
        }
        for layer in range(spec.layers):
            block = f"blocks.{layer}."
            # Query, key and value share one input, so its gradient is summed once, not three times.
            styles[block + "attention"] = PrepareModuleInput(
                input_layouts=whole, desired_input_layouts=whole, use_local_output=False
            )
            styles |= {f"{block}attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            styles[block + "attention.output"] = RowwiseParallel()
            styles[block + "mlp.up"] = ColwiseParallel()
            styles[block + "mlp.down"] = RowwiseParallel()
        return styles

    def _finish_gradients(self, model: torch.nn.Module) -> None:
        """Gradients are complete already."""


class TensorSequence(Tensor):
    """tensor + Megatron's sequence parallelism: norms and residuals hold 1/n of the sequence on each rank."""

    name = "tensor_sequence"
    display_name = "tensor + sequence parallel"
    shards = ("matrices", "activations")
    memory_formula = "about 16/n bytes per parameter (norms and some biases are on every rank)"
    _sequence = True

    def _cut_sizes(self, spec: WorkloadSpec) -> dict[str, int]:
        return {**super()._cut_sizes(spec), "sequence length": spec.sequence_length}

    def _communication(self, spec: WorkloadSpec, group: tuple[int, ...]) -> list[ExpectedCollective]:
        """Each all-reduce becomes an all-gather and a reduce-scatter; norm gradients take one flat all-reduce."""
        m, hidden = spec.micro_batches, _activation(spec, spec.hidden)
        norms = sum(numel(shape) for name, shape in parameter_shapes(spec).items() if "norm" in name)
        lines = []
        for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
            lines += [
                collective(
                    kind,
                    Axis.TENSOR,
                    group,
                    "inputs, outputs and their gradients of attention and MLP",
                    count=4 * spec.layers * m,
                    each=hidden,
                ),
                collective(kind, Axis.TENSOR, group, "token embedding", count=m, each=hidden),
                collective(kind, Axis.TENSOR, group, "input of the head", count=m, each=hidden),
            ]
        flat = collective(
            Kind.ALL_REDUCE,
            Axis.TENSOR,
            group,
            "norm gradients, once per step",
            count=1,
            each=norms * element_size(spec),
        )
        return [*lines, _logits(spec, group), flat]

    def _styles(self, spec: WorkloadSpec) -> dict[str, Any]:
        """As tensor, with activations between the matrices cut along the sequence."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
        )

        whole, cut = Replicate(), Shard(1)
        styles: dict[str, Any] = {
            "token": RowwiseParallel(input_layouts=whole, output_layouts=cut),
            "position": _cut_positions(),
            "norm": SequenceParallel(use_local_output=True),
            "head": ColwiseParallel(input_layouts=cut, output_layouts=whole),
        }
        for layer in range(spec.layers):
            block = f"blocks.{layer}."
            styles[block + "attention_norm"] = SequenceParallel(use_local_output=True)
            styles[block + "mlp_norm"] = SequenceParallel(use_local_output=True)
            styles[block + "attention"] = PrepareModuleInput(
                input_layouts=cut, desired_input_layouts=whole, use_local_output=False
            )
            styles |= {f"{block}attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            styles[block + "attention.output"] = RowwiseParallel(output_layouts=cut)
            styles[block + "mlp.up"] = ColwiseParallel(input_layouts=cut)
            styles[block + "mlp.down"] = RowwiseParallel(output_layouts=cut)
        return styles

    def _finish_gradients(self, model: torch.nn.Module) -> None:
        """Norm gradients are sums over this rank's part of the sequence: add them up once, in one flat all-reduce.

        Left as they are, the optimizer would all-reduce each of them, three times.
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, Replicate

        partial: list[tuple[torch.nn.Parameter, DTensor]] = [
            (parameter, parameter.grad)
            for parameter in model.parameters()
            if isinstance(parameter.grad, DTensor) and parameter.grad.placements[0].is_partial()
        ]
        mesh = partial[0][1].device_mesh
        flat = torch.cat([gradient.to_local().flatten() for _, gradient in partial])
        dist.all_reduce(flat, group=mesh.get_group())
        parts = torch.split(flat, [parameter.numel() for parameter, _ in partial])
        for (parameter, _), part in zip(partial, parts, strict=True):
            parameter.grad = DTensor.from_local(part.view(parameter.shape), mesh, [Replicate()], run_check=False)


def _cut_gradient(weight: torch.nn.Parameter) -> None:
    """Cut the embedding's gradient like its weight, micro-batch by micro-batch: torch leaves it whole on every rank."""
    cut: Any = weight
    cut.register_hook(lambda gradient: gradient.redistribute(placements=cut.placements))


def _activation(spec: WorkloadSpec, width: int) -> int:
    """Bytes of one micro-batch's activation of that width."""
    return spec.micro_batch_size * spec.sequence_length * width * element_size(spec)


def _logits(spec: WorkloadSpec, group: tuple[int, ...]) -> ExpectedCollective:
    each = _activation(spec, spec.vocabulary)
    return collective(Kind.ALL_GATHER, Axis.TENSOR, group, "logits", count=spec.micro_batches, each=each)


def _cut_positions() -> Any:
    """The position embedding holds, and returns, this rank's part of the sequence: no communication."""
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor
    from torch.distributed.tensor.parallel import ParallelStyle

    class CutPositions(ParallelStyle):
        def _apply(self, module: Any, device_mesh: Any) -> Any:
            def cut(_name: str, part: Any, mesh: Any) -> None:
                import torch

                part.weight = torch.nn.Parameter(distribute_tensor(part.weight, mesh, [Shard(0)], src_data_rank=None))

            return distribute_module(
                module, device_mesh, cut, output_fn=lambda _module, output, _mesh: output.to_local()
            )

    return CutPositions()


STRATEGIES = (Tensor(), TensorSequence())
