"""The built-in transformer's outline by formula. Torch-free; the meta device finds the same (test_own_model.py).

A decoder-only transformer: token and position embedding, `layers` pre-norm blocks (fused causal attention, MLP), a
final norm and an untied head. `transformer.build` creates exactly these parameters, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardscope.workload.outline import AttentionCore, Outline, TensorModule
from shardscope.workload.protocol import PIECES
from shardscope.workload.spec import WorkloadSpec

__all__ = ["outline_of_builtin"]

_FIRST = ("token.weight", "position.weight")
_LAST = ("norm.weight", "norm.bias", "head.weight")


def outline_of_builtin(spec: WorkloadSpec) -> Outline:
    """Everything the plans need to know, from the sizes alone."""
    blocks = [_block_shapes(spec, layer) for layer in range(spec.layers)]
    parameters: dict[str, tuple[int, ...]] = {
        "token.weight": (spec.vocabulary, spec.hidden),
        "position.weight": (spec.sequence_length, spec.hidden),
    }
    for block in blocks:
        parameters |= block
    parameters |= {
        "norm.weight": (spec.hidden,),
        "norm.bias": (spec.hidden,),
        "head.weight": (spec.vocabulary, spec.hidden),
    }
    tensor = tuple(_tensor_modules(spec))
    return Outline(
        parameters=parameters,
        blocks=tuple(tuple(block) for block in blocks),
        gradient_order=tuple(_gradient_order(spec)),
        first=_FIRST,
        last=_LAST,
        boundary=(spec.sequence_length, spec.hidden),
        flops_per_step=spec.layers * _block_flops(spec) + _head_flops(spec),
        block_flops=_block_flops(spec),
        tensor=tensor,
        tensor_styles={module.name: module.style for module in tensor},
        tensor_sizes={"heads": spec.heads, "MLP width": spec.hidden * spec.mlp_ratio, "vocabulary": spec.vocabulary},
        attention=tuple(_cores(spec)),
        positions=("position",),
        missing={"expert_modules": PIECES["expert_modules"]},
    )


def _block_shapes(spec: WorkloadSpec, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, wide = spec.hidden, spec.hidden * spec.mlp_ratio
    prefix = f"blocks.{layer}."
    shapes: dict[str, tuple[int, ...]] = {
        prefix + "attention_norm.weight": (hidden,),
        prefix + "attention_norm.bias": (hidden,),
    }
    for name in ("query", "key", "value", "output"):
        shapes[f"{prefix}attention.{name}.weight"] = (hidden, hidden)
        shapes[f"{prefix}attention.{name}.bias"] = (hidden,)
    shapes[prefix + "mlp_norm.weight"] = (hidden,)
    shapes[prefix + "mlp_norm.bias"] = (hidden,)
    shapes[prefix + "mlp.up.weight"] = (wide, hidden)
    shapes[prefix + "mlp.up.bias"] = (wide,)
    shapes[prefix + "mlp.down.weight"] = (hidden, wide)
    shapes[prefix + "mlp.down.bias"] = (hidden,)
    return shapes


def _gradient_order(spec: WorkloadSpec) -> list[str]:
    """Parameter names in the order in which backward completes their gradients.

    Autograd runs the newest node first: the head, then the blocks from last to first; inside one layer the bias is
    ready before the weight, whose gradient passes one more node (the transpose), and a norm's weight before its bias.
    """
    order = ["head.weight", "norm.weight", "norm.bias"]
    for layer in reversed(range(spec.layers)):
        for part in (
            "mlp.down",
            "mlp.up",
            "mlp_norm",
            "attention.output",
            "attention.value",
            "attention.key",
            "attention.query",
            "attention_norm",
        ):
            ends = ("weight", "bias") if part.endswith("norm") else ("bias", "weight")
            order += [f"blocks.{layer}.{part}.{end}" for end in ends]
    return [*order, "position.weight", "token.weight"]


def _block_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs of one block on the global batch: 6·B·s·(4 + 2·mlp_ratio)·h² + 12·B·s²·h.

    Megatron-LM (arXiv 2104.04473, appendix) without activation recomputation: matrix products only, backward twice the
    forward, the causal mask not discounted. mlp_ratio 4 gives its 72·B·s·h²·(1 + s/(6h)).
    """
    matrices = (4 + 2 * spec.mlp_ratio) * spec.hidden**2
    return spec.tokens_per_step * (6 * matrices + 12 * spec.sequence_length * spec.hidden)


def _head_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs of the language-model head on the global batch: 6·B·s·h·V (same source)."""
    return 6 * spec.tokens_per_step * spec.hidden * spec.vocabulary


def _tensor_modules(spec: WorkloadSpec) -> Iterable[TensorModule]:
    """Transformer.tensor_parallel_plan in its order, with sizes. Recomputation stops before the last projection ends:

    only its input is kept, so its all-reduce need not be done again.
    """
    again = int(spec.recompute)
    hidden = spec.sequence_length * spec.hidden
    wide = hidden * spec.mlp_ratio
    yield TensorModule(name="token", style="embedding", inputs=spec.sequence_length, outputs=hidden)
    yield TensorModule(name="position", style="positions", inputs=0, outputs=hidden)
    for layer in range(spec.layers):
        for name, style, inputs, outputs, shared, finished in (
            ("attention_norm", "sequence", hidden, hidden, False, again),
            ("attention", "input", hidden, hidden, False, again),
            ("attention.query", "colwise", hidden, hidden, True, again),
            ("attention.key", "colwise", hidden, hidden, True, again),
            ("attention.value", "colwise", hidden, hidden, True, again),
            ("attention.output", "rowwise", hidden, hidden, False, again),
            ("mlp_norm", "sequence", hidden, hidden, False, again),
            ("mlp.up", "colwise", hidden, wide, False, again),
            ("mlp.down", "rowwise", wide, hidden, False, 0),
        ):
            yield TensorModule(
                name=f"blocks.{layer}.{name}",
                style=style,
                inputs=inputs,
                outputs=outputs,
                shared=shared,
                entered=again,
                finished=finished,
            )
    yield TensorModule(name="norm", style="sequence", inputs=hidden, outputs=hidden)
    yield TensorModule(
        name="head", style="head", inputs=hidden, outputs=spec.sequence_length * spec.vocabulary
    )  # fmt: skip


def _cores(spec: WorkloadSpec) -> Iterable[AttentionCore]:
    shape = (spec.heads, spec.sequence_length, spec.hidden // spec.heads)
    for layer in range(spec.layers):
        yield AttentionCore(
            name=f"blocks.{layer}.attention.core",
            query=shape,
            key=shape,
            value=shape,
            output=shape,
            again=int(spec.recompute),
        )
