"""Sizes of the workload from its spec alone: parameter shapes, model FLOPs, activation memory. Torch-free.

The model is a decoder-only transformer: token and position embedding, `layers` pre-norm blocks (fused causal attention,
MLP), a final norm and an untied head. `model.build_model` creates exactly these parameters, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "activation_bytes",
    "block_flops",
    "block_shapes",
    "element_size",
    "flops_per_step",
    "head_flops",
    "numel",
    "parameter_count",
    "parameter_shapes",
    "stage_names",
]

_ELEMENT_SIZE = {"float32": 4, "bfloat16": 2}


def element_size(spec: WorkloadSpec) -> int:
    """Bytes of one parameter, gradient, moment or activation element."""
    return _ELEMENT_SIZE[spec.dtype]


def numel(shape: Iterable[int]) -> int:
    """Number of elements of an array of this shape."""
    return prod(shape)


def block_shapes(spec: WorkloadSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """Parameter names and shapes of block `layer`, in the model's order."""
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


def parameter_shapes(spec: WorkloadSpec) -> dict[str, tuple[int, ...]]:
    """All parameters by the plain model's names, in its order."""
    return stage_names(spec, range(spec.layers), first=True, last=True)


def stage_names(spec: WorkloadSpec, layers: Iterable[int], *, first: bool, last: bool) -> dict[str, tuple[int, ...]]:
    """Parameters of a part of the model: `layers`, the embeddings if `first`, the final norm and head if `last`."""
    shapes: dict[str, tuple[int, ...]] = {}
    if first:
        shapes["token.weight"] = (spec.vocabulary, spec.hidden)
        shapes["position.weight"] = (spec.sequence_length, spec.hidden)
    for layer in layers:
        shapes |= block_shapes(spec, layer)
    if last:
        shapes["norm.weight"] = (spec.hidden,)
        shapes["norm.bias"] = (spec.hidden,)
        shapes["head.weight"] = (spec.vocabulary, spec.hidden)
    return shapes


def parameter_count(spec: WorkloadSpec) -> int:
    """Elements of all parameters."""
    return sum(map(numel, parameter_shapes(spec).values()))


def block_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs of one block on the global batch: 6·B·s·(4 + 2·mlp_ratio)·h² + 12·B·s²·h.

    Megatron-LM (arXiv 2104.04473, appendix) without activation recomputation: matrix products only, backward twice the
    forward, the causal mask not discounted. mlp_ratio 4 gives its 72·B·s·h²·(1 + s/(6h)).
    """
    matrices = (4 + 2 * spec.mlp_ratio) * spec.hidden**2
    return spec.tokens_per_step * (6 * matrices + 12 * spec.sequence_length * spec.hidden)


def head_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs of the language-model head on the global batch: 6·B·s·h·V (same source)."""
    return 6 * spec.tokens_per_step * spec.hidden * spec.vocabulary


def flops_per_step(spec: WorkloadSpec) -> int:
    """Model FLOPs of one training step: layers · block_flops + head_flops (arXiv 2104.04473, see block_flops)."""
    return spec.layers * block_flops(spec) + head_flops(spec)


def activation_bytes(spec: WorkloadSpec, samples: int, *, layers: int, tensor: int = 1, sequence: bool = False) -> int:
    """Activations that `layers` blocks keep for the backward of `samples` samples on one rank: a lower estimate, bytes.

    s·b·h·(8 + 24/t) bytes per layer in 2-byte elements, everything over t with sequence parallelism: "Reducing
    Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, equations 2 to 4), minus the dropout masks
    (2 of its 34 bytes; this model has no dropout) and minus 5·a·s/h (fused attention keeps no score matrix).
    """
    tokens = samples * spec.sequence_length * spec.hidden
    halves = 32 / tensor if sequence else 8 + 24 / tensor
    return round(tokens * halves / 2 * element_size(spec) * layers)
