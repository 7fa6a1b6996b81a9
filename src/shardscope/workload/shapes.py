"""Sizes of the workload from its spec alone: parameter shapes, model FLOPs, activation memory.

Torch-free for the built-in model. A model of the user's own is built once on the meta device (no memory, no arithmetic)
to find them; torch is imported for that alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from shardscope.workload.builtin import outline_of_builtin
from shardscope.workload.outline import Outline
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "activation_bytes",
    "block_flops",
    "boundary_shape",
    "element_size",
    "flops_per_step",
    "gradient_order",
    "head_flops",
    "missing",
    "numel",
    "outline",
    "parameter_count",
    "parameter_shapes",
    "stage_names",
]

_ELEMENT_SIZE = {"float32": 4, "bfloat16": 2}
_KEPT = 16  # outlines
_outlines: dict[bytes, Outline] = {}


def outline(spec: WorkloadSpec) -> Outline:
    """What the plans know about the model. Raises ConfigError, one line, for an own model that cannot be used."""
    key = msgspec.json.encode(spec)
    if key not in _outlines:
        if len(_outlines) >= _KEPT:
            _outlines.clear()
        _outlines[key] = outline_of_builtin(spec) if spec.model is None else _outline_on_meta(spec)
    return _outlines[key]


def _outline_on_meta(spec: WorkloadSpec) -> Outline:
    from shardscope.workload.meta import outline_on_meta

    return outline_on_meta(spec)


def missing(spec: WorkloadSpec, piece: str) -> str | None:
    """Why what needs `piece` (a key of protocol.PIECES) does not apply to this model, or None if it offers it."""
    reason = outline(spec).missing.get(piece)
    return None if reason is None else f"{reason} (docs/own-model.md)"


def element_size(spec: WorkloadSpec) -> int:
    """Bytes of one parameter, gradient, moment or activation element."""
    return _ELEMENT_SIZE[spec.dtype]


def numel(shape: Iterable[int]) -> int:
    """Number of elements of an array of this shape."""
    return prod(shape)


def parameter_shapes(spec: WorkloadSpec) -> dict[str, tuple[int, ...]]:
    """All parameters by the plain model's names, in its order."""
    return dict(outline(spec).parameters)


def stage_names(spec: WorkloadSpec, layers: Iterable[int], *, first: bool, last: bool) -> dict[str, tuple[int, ...]]:
    """Parameters of a part of the model: `layers`, what is before the blocks if `first`, after them if `last`."""
    facts = outline(spec)
    held = set(facts.first if first else ()) | set(facts.last if last else ())
    for layer in layers:
        held.update(facts.blocks[layer])
    return {name: shape for name, shape in facts.parameters.items() if name in held}


def gradient_order(spec: WorkloadSpec) -> list[str]:
    """Parameter names in the order in which backward completes their gradients."""
    return list(outline(spec).gradient_order)


def boundary_shape(spec: WorkloadSpec, samples: int) -> tuple[int, ...]:
    """Shape of the activations that cross from one block to the next."""
    return (samples, *outline(spec).boundary)


def parameter_count(spec: WorkloadSpec) -> int:
    """Elements of all parameters."""
    return sum(map(numel, parameter_shapes(spec).values()))


def block_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs of one block (the mean one) on the global batch; 1 where they cannot be counted."""
    return outline(spec).block_flops or 1


def head_flops(spec: WorkloadSpec) -> int:
    """Forward and backward FLOPs outside the blocks, which the head has; 0 where they cannot be counted."""
    facts = outline(spec)
    if facts.flops_per_step is None or facts.block_flops is None:
        return 0
    return max(0, facts.flops_per_step - spec.layers * facts.block_flops)


def flops_per_step(spec: WorkloadSpec) -> int | None:
    """Model FLOPs of one training step, recomputation not counted (it adds a third to what the hardware does).

    The built-in model: a formula (builtin.py, arXiv 2104.04473). An own model: what torch's counter sees, None where
    it fails.
    """
    return outline(spec).flops_per_step


def activation_bytes(
    spec: WorkloadSpec, samples: int, *, layers: int, tensor: int = 1, sequence: bool = False, in_flight: int = 1
) -> int:
    """Activations that `layers` blocks keep for the backward on one rank: a lower estimate, bytes.

    `in_flight` micro-batches of `samples` samples each. s·b·h·(8 + 24/t) bytes per layer in 2-byte elements, everything
    over t with sequence parallelism: "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198,
    equations 2 to 4), minus the dropout masks (2 of its 34 bytes; this model has no dropout) and minus 5·a·s/h (fused
    attention keeps no score matrix). An own model: what its blocks were seen to keep, whatever `tensor` is. With
    recomputation the blocks' inputs are kept, and one block's activations while it is done again.
    """
    facts, size = outline(spec), element_size(spec)
    if facts.saved is None:
        halves = 32 / tensor if sequence else 8 + 24 / tensor
        each = samples * spec.sequence_length * spec.hidden * halves / 2 * size
    else:
        each = float(samples * facts.saved)
    if not spec.recompute:
        return in_flight * round(each * layers)
    inputs = samples * numel(facts.boundary) * size / (tensor if sequence else 1)
    return in_flight * round(inputs * layers) + (round(each) if layers else 0)
