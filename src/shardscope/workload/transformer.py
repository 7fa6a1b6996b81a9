"""The built-in model: a decoder-only transformer that offers everything workload/protocol.py names but experts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from shardscope.workload.protocol import TensorPlan
from shardscope.workload.spec import WorkloadSpec

__all__ = ["Attention", "Block", "Transformer", "build", "initialise"]


class Position(nn.Module):
    """Learned position embedding: [sequence_length, hidden], added to every sample."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.sequence_length, spec.hidden))

    def forward(self) -> torch.Tensor:
        return self.weight.view_as(self.weight)  # a new tensor: tensor parallelism turns outputs, not parameters, local


class Core(nn.Module):
    """Causal attention proper, without parameters. All tensors: [samples, heads, sequence, head size]."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention. The number of heads follows from the projections' width, which tensor parallelism cuts."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.head_size = spec.hidden // spec.heads
        self.query = nn.Linear(spec.hidden, spec.hidden)
        self.key = nn.Linear(spec.hidden, spec.hidden)
        self.value = nn.Linear(spec.hidden, spec.hidden)
        self.core = Core()
        self.output = nn.Linear(spec.hidden, spec.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = self.core(query, key, value)
        mixed = mixed.transpose(1, 2).flatten(2)
        return cast(torch.Tensor, self.output(mixed))


class MLP(nn.Module):
    """Two projections around a GELU."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.hidden, spec.hidden * spec.mlp_ratio)
        self.down = nn.Linear(spec.hidden * spec.mlp_ratio, spec.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, spec: WorkloadSpec, mlp: Callable[[WorkloadSpec], nn.Module] = MLP) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.hidden)
        self.attention = Attention(spec)
        self.mlp_norm = nn.LayerNorm(spec.hidden)
        self.mlp = mlp(spec)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return cast(torch.Tensor, x + self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Blocks `layers` of the model, with the embeddings if `first` and the final norm and head if `last`.

    Input: tokens int64 [samples, sequence_length] if `first`, else activations [samples, sequence_length, hidden].
    Output: logits [samples, sequence_length, vocabulary] if `last`, else activations. Parameter names are those of the
    whole model whatever part is built.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        layers: Iterable[int],
        *,
        first: bool,
        last: bool,
        block: Callable[[WorkloadSpec], nn.Module] = Block,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.token = nn.Embedding(spec.vocabulary, spec.hidden) if first else None
        self.position = Position(spec) if first else None
        self.blocks = nn.ModuleDict({str(layer): block(spec) for layer in layers})
        self.norm = nn.LayerNorm(spec.hidden) if last else None
        self.head = nn.Linear(spec.hidden, spec.vocabulary, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.token is not None and self.position is not None:
            x = self.token(x) + self.position()
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def stage(self, first: bool, layers: range, last: bool) -> Transformer:
        """A part made of this model's own submodules."""
        part = type(self)(self.spec, (), first=False, last=False)
        if first:
            part.token, part.position = self.token, self.position
        part.blocks = nn.ModuleDict({str(layer): self.blocks[str(layer)] for layer in layers})
        if last:
            part.norm, part.head = self.norm, self.head
        return part

    def tensor_parallel_plan(self) -> TensorPlan:
        """Megatron's cut: attention by heads, MLP by its wide dimension, embedding and head by vocabulary."""
        styles = {"token": "embedding", "position": "positions"}
        for layer in self.blocks:
            block = f"blocks.{layer}."
            styles |= {block + "attention_norm": "sequence", block + "attention": "input"}
            styles |= dict.fromkeys((f"{block}attention.{name}" for name in ("query", "key", "value")), "colwise")
            styles |= {
                block + "attention.output": "rowwise",
                block + "mlp_norm": "sequence",
                block + "mlp.up": "colwise",
                block + "mlp.down": "rowwise",
            }
        spec = self.spec
        return TensorPlan(
            styles={**styles, "norm": "sequence", "head": "head"},
            sizes={"heads": spec.heads, "MLP width": spec.hidden * spec.mlp_ratio, "vocabulary": spec.vocabulary},
        )

    def sequence_parallel_plan(self) -> dict[str, str]:
        """Attention mixes positions; the position embedding is one row per position."""
        return {"position": "positions", **{f"blocks.{layer}.attention.core": "attention" for layer in self.blocks}}


def build(
    spec: WorkloadSpec, layers: Iterable[int] | None = None, *, first: bool = True, last: bool = True
) -> Transformer:
    """The model, or the part described in `Transformer`, in the spec's dtype, initialised by its seed."""
    chosen = range(spec.layers) if layers is None else layers
    with torch.device("meta"):
        model = Transformer(spec, chosen, first=first, last=last)
    return initialise(model, spec)


def initialise(model: Transformer, spec: WorkloadSpec) -> Transformer:
    """Move a model from the meta device to the default one; its parameters from the seed.

    Each parameter has its own random stream, from the seed and its name, so a part equals that part of the whole.
    """
    device = torch.get_default_device()
    model = model.to(getattr(torch, spec.dtype)).to_empty(device=device)
    if device.type == "meta":
        return model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, spec)
    return model


def _fill(name: str, parameter: torch.Tensor, spec: WorkloadSpec) -> None:
    """GPT-2's initialisation: normal 0.02, over √(2·layers) for projections back into the residual stream."""
    if name.endswith("bias"):
        parameter.zero_()
    elif "norm" in name:
        parameter.fill_(1.0)
    else:
        residual = name.endswith(("attention.output.weight", "mlp.down.weight", "mlp.experts.down_weight"))
        deviation = 0.02 / (2 * spec.layers) ** 0.5 if residual else 0.02
        # The CPU generator uses 32 bits of its seed, so both parts must go into those.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{spec.seed}/{name}".encode()))
        parameter.normal_(0.0, deviation, generator=generator)
