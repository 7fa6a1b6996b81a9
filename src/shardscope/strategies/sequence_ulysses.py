"""DeepSpeed-Ulysses (arXiv 2309.14509): each rank holds part of the sequence, in attention part of the heads instead.

An all-to-all before attention turns 1/n of the positions with all heads into all positions with 1/n of the heads, one
after it turns them back. Everything else works position by position. The parameters are on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.exchange import exchange, same_for_all
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, missing, numel, outline, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import Plan
    from shardscope.workload.outline import AttentionCore
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Ulysses"]


class Ulysses:
    """All-to-alls around attention; gradients of the whole model are added up once per step, in one flat buffer."""

    name = "sequence_ulysses"
    display_name = "sequence parallel (Ulysses)"
    shards: tuple[str, ...] = ("sequence",)
    defaults: Mapping[str, Any] = {}
    memory_formula = "16 bytes per parameter"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Sequence and attention heads are cut in equal parts."""
        if (reason := missing(spec, "sequence_parallel_plan")) is not None:
            return reason
        cores = outline(spec).attention
        heads = same_for_all("heads", {f"heads of {core.name}": core.query[0] for core in cores})
        keys = {f"key heads of {core.name}": core.key[0] for core in cores if core.key[0] != core.query[0]}
        return undivided(
            world_size, {**heads, **same_for_all("key heads", keys), "sequence length": spec.sequence_length}
        )

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Four all-to-alls per layer and micro-batch forward and four backward, each of 1/n of a whole tensor."""
        elements = [numel(shape) for shape in parameter_shapes(spec).values()]
        ranks, size = world(world_size), element_size(spec)
        state = [rank_state(spec, rank, parameters=elements, gradients=elements, optimized=elements) for rank in ranks]
        lines = [
            collective(
                Kind.ALL_TO_ALL,
                Axis.SEQUENCE,
                ranks,
                f"{tensor} of {core.name} and its gradient",
                count=(2 + core.again) * spec.micro_batches,
                each=spec.micro_batch_size * numel(shape) // world_size * size,
            )
            for core in outline(spec).attention
            for tensor, shape in _tensors(core).items()
        ]
        whole = collective(
            Kind.ALL_REDUCE, Axis.SEQUENCE, ranks, "all gradients, once per step", count=1, each=size * sum(elements)
        )
        active = activation_bytes(spec, spec.micro_batch_size, layers=spec.layers) // world_size
        return make_plan(spec, state, (*lines, whole), activation_bytes=(active,) * world_size)

    def build(self, context: BuildContext) -> Trainer:
        """Plain loop on this rank's part of the sequence + all-to-alls in hooks of attention."""
        import torch.distributed as dist

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer, mean_over_ranks

        spec, n, rank = context.spec, context.world_size, context.rank
        model = build_model(spec).to(context.device)
        facts = outline(spec)
        for core in facts.attention:
            module = model.get_submodule(core.name)
            module.register_forward_pre_hook(lambda _module, tensors: tuple(to_heads(x, n) for x in tensors))
            module.register_forward_hook(lambda _module, _tensors, output: to_positions(output, n))
        for name in facts.positions:
            model.get_submodule(name).register_forward_hook(lambda _module, _inputs, rows: rows.chunk(n)[rank])
        gradients = _flat_gradients(model)

        def add_up() -> None:
            # Each rank has the mean loss of its own positions; the mean over all is 1/n of their sum.
            for flat in gradients:
                dist.all_reduce(flat)
                flat.div_(n)

        def clear(_optimizer: torch.optim.Optimizer) -> None:
            for flat in gradients:
                flat.zero_()

        class SequenceLoop(Loop):
            """All samples of a micro-batch, this rank's part of each."""

            def _micro_batches(
                self, inputs: torch.Tensor, targets: torch.Tensor
            ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
                return super()._micro_batches(part(inputs), part(targets))

            def request(self, inputs: torch.Tensor) -> None:
                super().request(part(inputs))

        def part(batch: torch.Tensor) -> torch.Tensor:
            return batch.chunk(n, dim=1)[rank].contiguous()

        return SequenceLoop(
            spec=spec,
            model=model,
            forward=model,
            optimizer=make_optimizer(model.parameters(), spec),
            device=context.device,
            group_axes={world(n): Axis.SEQUENCE},
            after_backward=add_up,
            clear_gradients=clear,
            share=mean_over_ranks,
        )


def _tensors(core: AttentionCore) -> dict[str, tuple[int, ...]]:
    return {"query": core.query, "key": core.key, "value": core.value, "output": core.output}


def to_heads(x: Any, ranks: int) -> torch.Tensor:
    """[samples, heads, sequence/n, size] of every rank → [samples, heads/n, sequence, size]."""
    parts = x.unflatten(1, (ranks, -1)).transpose(0, 1)  # [destination, samples, heads/n, sequence/n, size]
    return exchange(parts).movedim(0, 2).flatten(2, 3)


def to_positions(x: Any, ranks: int) -> torch.Tensor:
    """The way back."""
    parts = x.unflatten(2, (ranks, -1)).movedim(2, 0)
    return exchange(parts).transpose(0, 1).flatten(1, 2)


def _flat_gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Make all gradients views of one buffer (per dtype), which one all-reduce then adds up without a copy."""
    import torch

    by_type: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    for parameter in model.parameters():
        by_type.setdefault(parameter.dtype, []).append(parameter)
    buffers = []
    for dtype, parameters in by_type.items():
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=parameters[0].device)
        for parameter, view in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.grad = view.view(parameter.shape)
        buffers.append(flat)
    return buffers


STRATEGIES = (Ulysses(),)
