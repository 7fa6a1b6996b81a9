"""Tensor parallelism: each matrix is cut over the ranks; tensor_sequence also cuts what lies between the matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardscope.measure.record import ExpectedCollective
from shardscope.strategies.accounting import make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, missing, numel, outline, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import Plan
    from shardscope.workload.outline import TensorModule
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Tensor", "TensorSequence", "communication", "cut_sizes", "local_shape", "parallelize"]

_BLOCKS = "outputs and input gradients of attention and MLP"
_BLOCKS_CUT = "inputs, outputs and their gradients of attention and MLP"


def cut_sizes(spec: WorkloadSpec) -> dict[str, int]:
    """What must divide evenly among the ranks: what the model names, then cut dimensions that do not follow from it."""
    sizes, shapes = dict(outline(spec).tensor_sizes), parameter_shapes(spec)
    for module in outline(spec).tensor:
        weight = f"{module.name}.weight"
        dimension = _cut_dimension(module.style, "weight", sequence=False)
        if dimension is None:
            continue
        width = shapes[weight][dimension]
        if all(width % size for size in sizes.values()):  # a multiple of one that divides, divides
            sizes[f"dimension {dimension} of {weight}"] = width
    return sizes


def local_shape(
    spec: WorkloadSpec, name: str, shape: tuple[int, ...], ranks: int, *, sequence: bool = False
) -> tuple[int, ...]:
    """Shape of the part of parameter `name` that one of `ranks` tensor ranks holds."""
    module, _, kind = name.rpartition(".")
    dimension = _cut_dimension(_styles(spec).get(module, ""), kind, sequence=sequence)
    if dimension is None:
        return shape
    return tuple(size // ranks if index == dimension else size for index, size in enumerate(shape))


def _styles(spec: WorkloadSpec) -> dict[str, str]:
    return {module.name: module.style for module in outline(spec).tensor}


def _cut_dimension(style: str, kind: str, *, sequence: bool) -> int | None:
    """The dimension in which tensor parallelism cuts a parameter `kind` (weight or bias), None where it does not."""
    if style in ("colwise", "head") or (style == "positions" and sequence) or (style, kind) == ("embedding", "weight"):
        return 0
    return 1 if (style, kind) == ("rowwise", "weight") else None


def communication(spec: WorkloadSpec, group: tuple[int, ...], *, sequence: bool = False) -> list[ExpectedCollective]:
    """Collectives of one step in the tensor group.

    All-reduces of whole activations: the outputs of row-wise cut matrices and of the embedding in forward, the inputs'
    gradients of column-wise cut ones in backward; for the built-in model 4 per layer and micro-batch, one each for the
    embedding and the head. With `sequence` each becomes an all-gather and a reduce-scatter, and the norms' gradients
    take one flat all-reduce. What recomputation does again in backward counts again.
    """
    tally = _Tally(spec, group)
    for module in outline(spec).tensor:
        if module.style in ("rowwise", "embedding"):
            what = "token embedding" if module.style == "embedding" else _BLOCKS_CUT if sequence else _BLOCKS
            if sequence:
                tally.add(Kind.REDUCE_SCATTER, what, 1 + module.finished, module.outputs)
                tally.add(Kind.ALL_GATHER, what, 1, module.outputs)
            else:
                tally.add(Kind.ALL_REDUCE, what, 1 + module.finished, module.outputs)
        elif _takes_input(module) and sequence:
            what = "input of the head" if module.style == "head" else _BLOCKS_CUT
            tally.add(Kind.ALL_GATHER, what, 1 + module.entered, module.inputs)
            tally.add(Kind.REDUCE_SCATTER, what, 1, module.inputs)
        elif _takes_input(module):
            what = "input gradient of the head" if module.style == "head" else _BLOCKS
            tally.add(Kind.ALL_REDUCE, what, 1, module.inputs)
        if module.style == "head":
            tally.add(Kind.ALL_GATHER, "logits", 1 + module.finished, module.outputs)
    lines = tally.lines()
    if sequence:
        norms = _norm_elements(spec) * element_size(spec)
        lines.append(
            ExpectedCollective(
                kind=Kind.ALL_REDUCE,
                axis=Axis.TENSOR,
                group=group,
                count=1,
                bytes=norms,
                what="norm gradients, once per step",
            )
        )
    return lines


def _takes_input(module: TensorModule) -> bool:
    """Whether the gradient of this module's input is to be summed: query, key and value do that once, together."""
    return module.style in ("input", "head") or (module.style == "colwise" and not module.shared)


def _norm_elements(spec: WorkloadSpec) -> int:
    norms = [f"{name}." for name, style in _styles(spec).items() if style == "sequence"]
    return sum(numel(shape) for name, shape in parameter_shapes(spec).items() if name.startswith(tuple(norms)))


class _Tally:
    """Adds up calls and bytes per kind and purpose, in the order in which they first appear."""

    def __init__(self, spec: WorkloadSpec, group: tuple[int, ...]) -> None:
        self.group, self.micro_batches = group, spec.micro_batches
        self.scale = spec.micro_batch_size * element_size(spec)
        self.found: dict[tuple[Kind, str], tuple[int, int]] = {}

    def add(self, kind: Kind, what: str, times: int, elements: int) -> None:
        """`times` calls per micro-batch, each of `elements` elements per sample."""
        count, size = self.found.get((kind, what), (0, 0))
        more = times * self.micro_batches
        self.found[kind, what] = (count + more, size + more * elements * self.scale)

    def lines(self) -> list[ExpectedCollective]:
        return [
            ExpectedCollective(kind=kind, axis=Axis.TENSOR, group=self.group, count=count, bytes=size, what=what)
            for (kind, what), (count, size) in self.found.items()
        ]


def parallelize(model: Any, mesh: Any, spec: WorkloadSpec, *, sequence: bool = False) -> None:
    """Cut a whole model over `mesh` by its tensor-parallel plan; between the matrices activations are plain tensors."""
    from torch.distributed.tensor.parallel import parallelize_module

    styles = outline(spec).tensor_styles
    # What lies in an `input` module gets its input whole.
    inside = {module.name for module in outline(spec).tensor if module.shared}
    chosen = {name: _parallel_style(style, sequence and name not in inside) for name, style in styles.items()}
    parallelize_module(model, mesh, {name: style for name, style in chosen.items() if style is not None})
    for name, style in styles.items():
        if style == "embedding":
            _cut_gradient(model.get_parameter(f"{name}.weight"))


def _parallel_style(style: str, sequence: bool) -> Any:
    """torch's ParallelStyle, None where nothing is to be done. With `sequence`, activations are cut along it."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    whole = Replicate()
    between = Shard(1) if sequence else whole
    kind, _, argument = style.partition(":")
    if kind == "input":
        # Query, key and value share one input, so its gradient is summed once, not three times.
        layouts: dict[str, Any] = {"input_layouts": between, "desired_input_layouts": whole}
        if argument:
            layouts = {"input_kwarg_layouts": {argument: between}, "desired_input_kwarg_layouts": {argument: whole}}
        return PrepareModuleInput(**layouts, use_local_output=False)
    if kind == "sequence":
        return SequenceParallel(use_local_output=True) if sequence else None
    if kind == "positions":
        return _cut_positions() if sequence else None
    if kind in ("embedding", "rowwise"):
        return RowwiseParallel(input_layouts=whole if kind == "embedding" else None, output_layouts=between)
    return ColwiseParallel(input_layouts=between, output_layouts=whole if kind == "head" else None)


class Tensor:
    """Megatron's cut: attention by heads, MLP by its wide dimension, embedding and head by vocabulary."""

    name = "tensor"
    display_name = "tensor parallel"
    shards: tuple[str, ...] = ("matrices",)
    defaults: Mapping[str, Any] = {}
    memory_formula = "about 16/n bytes per parameter (norms, some biases and positions are on every rank)"
    _sequence = False

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """The model must say how to cut it; heads, MLP width and vocabulary are cut in equal parts."""
        lacking = missing(spec, "sequence" if self._sequence else "tensor_parallel_plan")
        if lacking is not None:
            return lacking
        along = {"sequence length": spec.sequence_length} if self._sequence else {}
        return undivided(world_size, {**cut_sizes(spec), **along})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """State: matrices over n. Communication: see communication."""
        held = [
            numel(local_shape(spec, name, shape, world_size, sequence=self._sequence))
            for name, shape in parameter_shapes(spec).items()
        ]
        state = [rank_state(spec, rank, parameters=held, gradients=held, optimized=held) for rank in range(world_size)]
        active = activation_bytes(
            spec, spec.micro_batch_size, layers=spec.layers, tensor=world_size, sequence=self._sequence
        )
        lines = communication(spec, world(world_size), sequence=self._sequence)
        return make_plan(spec, state, lines, activation_bytes=(active,) * world_size)

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop + parallelize_module."""
        from torch.distributed.device_mesh import init_device_mesh

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer

        mesh = init_device_mesh(context.device.type, (context.world_size,), mesh_dim_names=("tensor",))
        model = build_model(context.spec).to(context.device)
        parallelize(model, mesh, context.spec, sequence=self._sequence)
        return Loop(
            spec=context.spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), context.spec),
            device=context.device,
            group_axes={world(context.world_size): Axis.TENSOR},
            after_backward=lambda: self._finish_gradients(model),
        )

    def _finish_gradients(self, model: torch.nn.Module) -> None:
        """Gradients are complete already."""


class TensorSequence(Tensor):
    """tensor + Megatron's sequence parallelism: norms and residuals hold 1/n of the sequence on each rank."""

    name = "tensor_sequence"
    display_name = "tensor + sequence parallel"
    shards = ("matrices", "activations")
    memory_formula = "about 16/n bytes per parameter (norms and some biases are on every rank)"
    _sequence = True

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
        if not partial:
            return
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
