"""What all plans know about a model: names and shapes, by formula or from the meta device. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["AttentionCore", "ExpertModule", "Outline", "TensorModule"]


@dataclass(frozen=True, kw_only=True)
class TensorModule:
    """A submodule of the tensor-parallel plan.

    style: one of protocol.STYLES, `input:NAME` shortened to `input`. inputs, outputs: elements per sample. shared: its
    input comes from an `input` module that contains it. entered, finished: how often backward repeats its input and
    its output (0 or 1; 1 with recomputation, which stops once the last activation is there).
    """

    name: str
    style: str
    inputs: int
    outputs: int
    shared: bool = False
    entered: int = 0
    finished: int = 0


@dataclass(frozen=True, kw_only=True)
class AttentionCore:
    """What attention does between the projections. Shapes per sample, (heads, sequence, size)."""

    name: str
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    output: tuple[int, ...]
    again: int = 0  # forwards that backward repeats


@dataclass(frozen=True, kw_only=True)
class ExpertModule:
    """The experts of one layer. dispatched: (experts, capacity, hidden) per sample, of input and output."""

    name: str
    dispatched: tuple[int, ...]
    parameters: tuple[str, ...]
    again: int = 0  # forwards that backward repeats


@dataclass(frozen=True, kw_only=True)
class Outline:
    """One model. Names are those of the whole model's parameters and submodules.

    missing: pieces (protocol.PIECES) that it does not offer → why. saved: bytes that one block keeps for the backward
    of one sample, None where the formula of workload.shapes holds.
    """

    parameters: Mapping[str, tuple[int, ...]]
    blocks: tuple[tuple[str, ...], ...]  # names of the parameters of each block
    gradient_order: tuple[str, ...]  # in which backward completes them
    first: tuple[str, ...] = ()  # parameters before the blocks, held by the first stage
    last: tuple[str, ...] = ()
    boundary: tuple[int, ...] = ()  # what crosses between blocks, per sample
    flops_per_step: int | None = None
    block_flops: int | None = None
    tensor: tuple[TensorModule, ...] = ()
    tensor_styles: Mapping[str, str] = field(default_factory=dict)  # name → style, as the model gave it
    tensor_sizes: Mapping[str, int] = field(default_factory=dict)
    attention: tuple[AttentionCore, ...] = ()
    positions: tuple[str, ...] = ()
    experts: tuple[ExpertModule, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    saved: int | None = None
