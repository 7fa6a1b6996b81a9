"""A mixture-of-experts transformer: the built-in model with an MLP of several experts per block.

`model: shardscope.workload.experts:build`, with `model_options`: experts (4), top (1 or 2), capacity_factor (1.25).
Routing is Switch's and GShard's (arXiv 2101.03961, 2006.16668) with every sample a group of its own: its tokens
compete for ⌈top · sequence / experts · capacity_factor⌉ places per expert, in their order. Shapes are therefore static
and a sample's result does not depend on the others, so that it is the same however the batch is cut. A token that finds
no place passes by on the residual stream. There is no auxiliary loss: this measures training steps, not convergence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from shardscope.workload.spec import WorkloadSpec
from shardscope.workload.transformer import Block, Transformer, initialise

__all__ = ["Experts", "Mixture", "MixtureTransformer", "Options", "build"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """`model_options`. Raises ValueError or TypeError for what cannot be."""

    experts: int = 4
    top: int = 1
    capacity_factor: float = 1.25

    def __post_init__(self) -> None:
        if not isinstance(self.experts, int) or self.experts < 2:
            raise ValueError(f"model_options: experts must be a whole number of at least 2, not {self.experts!r}")
        if self.top not in (1, 2):
            raise ValueError(f"model_options: top must be 1 or 2, not {self.top!r}")
        if not isinstance(self.capacity_factor, (int, float)) or not 0 < self.capacity_factor <= 1000:
            raise ValueError(f"model_options: capacity_factor must lie above 0, not {self.capacity_factor!r}")

    def capacity(self, sequence_length: int) -> int:
        """Places per expert and sample, no more than there are tokens."""
        return min(sequence_length, ceil(self.top * sequence_length / self.experts * self.capacity_factor))


class Experts(nn.Module):
    """All experts of a layer, stacked: dimension 0 of every parameter is the expert.

    Input and output: [samples, experts, capacity, hidden], any number of samples, and as many experts as there are.
    """

    def __init__(self, experts: int, hidden: int, wide: int) -> None:
        super().__init__()
        self.up_weight = nn.Parameter(torch.empty(experts, hidden, wide))
        self.up_bias = nn.Parameter(torch.empty(experts, wide))
        self.down_weight = nn.Parameter(torch.empty(experts, wide, hidden))
        self.down_bias = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples = x.shape[0]
        tokens = x.transpose(0, 1).flatten(1, 2)  # [experts, samples · capacity, hidden]
        wide = F.gelu(torch.baddbmm(self.up_bias.unsqueeze(1), tokens, self.up_weight))
        tokens = torch.baddbmm(self.down_bias.unsqueeze(1), wide, self.down_weight)
        return tokens.reshape(x.shape[1], samples, x.shape[2], x.shape[3]).transpose(0, 1)


class Mixture(nn.Module):
    """The MLP's place in a block: a gate sends each token to its `top` best experts, as far as they have room."""

    def __init__(self, spec: WorkloadSpec, options: Options) -> None:
        super().__init__()
        self.options, self.capacity = options, options.capacity(spec.sequence_length)
        self.gate = nn.Linear(spec.hidden, options.experts, bias=False)
        self.experts = Experts(options.experts, spec.hidden, spec.hidden * spec.mlp_ratio)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.route(x)  # [samples, sequence, experts, capacity]
        places = (weights.detach() > 0).to(x.dtype)
        dispatched = torch.einsum("bsec,bsh->bech", places, x)
        return torch.einsum("bsec,bech->bsh", weights, self.experts(dispatched))

    def route(self, x: torch.Tensor) -> torch.Tensor:
        """The gate's weight of each token at its place with each of its experts, else 0."""
        probabilities = self.gate(x).float().softmax(-1)
        values, chosen = probabilities.topk(self.options.top, dim=-1)
        if self.options.top > 1:
            values = values / values.sum(-1, keepdim=True)
        taken = x.new_zeros(x.shape[0], 1, self.options.experts, dtype=torch.int64)
        weights: torch.Tensor | None = None
        for rank in range(self.options.top):  # first choices find their places before second ones
            wanted = F.one_hot(chosen[..., rank], self.options.experts)  # [samples, sequence, experts]
            place = wanted.cumsum(1) - 1 + taken
            fits = wanted * (place < self.capacity)
            at = F.one_hot(place.clamp(0, self.capacity - 1), self.capacity) * fits.unsqueeze(-1)
            part = values[..., rank, None, None] * at
            weights = part if weights is None else weights + part
            taken = taken + fits.sum(1, keepdim=True)
        return cast(torch.Tensor, weights).to(x.dtype)


class MixtureTransformer(Transformer):
    """The built-in model with a Mixture in every block: no tensor-parallel plan, and routing sees whole sequences."""

    tensor_parallel_plan = None  # type: ignore[assignment]
    sequence_parallel_plan = None  # type: ignore[assignment]

    def __init__(self, spec: WorkloadSpec, layers: Iterable[int], *, first: bool, last: bool) -> None:
        options = Options(**spec.model_options)  # type: ignore[arg-type]
        block = functools.partial(Block, mlp=functools.partial(Mixture, options=options))
        super().__init__(spec, layers, first=first, last=last, block=block)

    def expert_modules(self) -> list[str]:
        """One stack of experts per block."""
        return [f"blocks.{layer}.mlp.experts" for layer in self.blocks]


def build(spec: WorkloadSpec) -> MixtureTransformer:
    """The whole model, initialised like the built-in one: each parameter from the seed and its name."""
    with torch.device("meta"):
        model = MixtureTransformer(spec, range(spec.layers), first=True, last=True)
    return cast(MixtureTransformer, initialise(model, spec))
