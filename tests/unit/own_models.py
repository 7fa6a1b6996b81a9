"""Models of a user's own, as `own_models:NAME` in tests: one that is whole, and ones that lack or break something."""

from collections.abc import Callable
from types import MethodType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from shardscope.workload.spec import WorkloadSpec


class Mix(nn.Module):
    """Causal attention that fades with distance: no position embedding is needed for order, so both are used."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        place = torch.arange(query.shape[2], device=query.device)
        fade = -0.1 * (place[:, None] - place[None, :]).to(query.dtype)
        bias = fade.masked_fill(place[:, None] < place[None, :], float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


class Parallel(nn.Module):
    """Attention and a gated MLP side by side behind one norm; a list goes in, a tuple comes out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.scale = nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.mix = Mix()
        self.out = nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scale(x)
        parts = (p(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        attended = self.out(self.mix(*parts).transpose(1, 2).flatten(2))
        return cast(torch.Tensor, x + attended + self.down(F.silu(self.gate(y)) * self.up(y)))


class Places(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self) -> torch.Tensor:
        return self.weight.view_as(self.weight)


class Palm(nn.Module):
    """Offers blocks by name, a loss of its own, a plain mapping as tensor plan (without `sequence`), stages."""

    def __init__(self, enter: nn.ModuleDict | None, layers: list[nn.Module], leave: nn.Sequential | None) -> None:
        super().__init__()
        self.enter, self.layers, self.leave = enter, nn.ModuleList(layers), leave

    @property
    def blocks(self) -> list[str]:
        return [f"layers.{index}" for index in range(len(self.layers))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.enter is not None:
            x = self.enter["words"](x) + self.enter["places"]()
        for layer in self.layers:
            x = layer(x)
        return x if self.leave is None else cast(torch.Tensor, self.leave(x))

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with PaLM's z-loss."""
        normaliser = torch.logsumexp(outputs.flatten(0, 1), -1)
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten()) + 1e-4 * normaliser.square().mean()

    def stage(self, first: bool, layers: range, last: bool) -> "Palm":
        kept = [self.layers[index] for index in layers]
        return Palm(self.enter if first else None, kept, self.leave if last else None)

    def tensor_parallel_plan(self) -> dict[str, str]:
        plan = {"enter.words": "embedding", "leave.1": "head"}
        for block in self.blocks:
            plan |= {f"{block}.{name}": "colwise" for name in ("q", "k", "v", "gate", "up")}
            plan |= {f"{block}.out": "rowwise", f"{block}.down": "rowwise"}
        return plan

    def sequence_parallel_plan(self) -> dict[str, str]:
        return {"enter.places": "positions", **{f"{block}.mix": "attention" for block in self.blocks}}


def palm(spec: WorkloadSpec) -> Palm:
    width = spec.hidden
    enter = {"words": nn.Embedding(spec.vocabulary, width), "places": Places(spec.sequence_length, width)}
    layers: list[nn.Module] = [Parallel(width, spec.heads) for _ in range(spec.layers)]
    leave = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, spec.vocabulary))
    return Palm(nn.ModuleDict(enter), layers, leave)


class Bare(nn.Module):
    """Only a forward."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(spec.vocabulary, spec.hidden), nn.Linear(spec.hidden, spec.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.head(self.words(tokens)))


def bare(spec: WorkloadSpec) -> nn.Module:
    return Bare(spec)


def number(spec: WorkloadSpec) -> Any:
    return 7


def crash(spec: WorkloadSpec) -> Any:
    raise KeyError("no such option")


def leave_early(spec: WorkloadSpec) -> Any:
    raise SystemExit(0)


def _changed(change: Callable[[Palm], None]) -> Callable[[WorkloadSpec], Palm]:
    def build(spec: WorkloadSpec) -> Palm:
        model = palm(spec)
        change(model)
        return model

    return build


def _frozen(model: Palm) -> None:
    model.layers[0].out.bias.requires_grad_(False)


def _unused(model: Palm) -> None:
    model.extra = nn.Linear(2, 2)


def _one_layer_more(model: Palm) -> None:
    model.layers.append(Parallel(32, 4))


def _no_logits(model: Palm) -> None:
    model.leave = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 5))


def _shared(model: Palm) -> None:
    assert model.enter is not None and model.leave is not None
    model.leave[1].weight = model.enter["words"].weight


def _unknown_style(model: Palm) -> None:
    model.tensor_parallel_plan = lambda: {"leave.1": "diagonal"}  # type: ignore[method-assign]


def _unknown_module(model: Palm) -> None:
    model.tensor_parallel_plan = lambda: {"leave.9": "head"}  # type: ignore[method-assign]


def _loss_of_the_whole(model: Palm) -> None:
    model.loss = MethodType(lambda _self, outputs, targets: Palm.loss(outputs, targets), model)  # type: ignore


frozen, unused, one_layer_more = _changed(_frozen), _changed(_unused), _changed(_one_layer_more)
no_logits, shared, loss_of_the_whole = _changed(_no_logits), _changed(_shared), _changed(_loss_of_the_whole)
unknown_style, unknown_module = _changed(_unknown_style), _changed(_unknown_module)
text = "not a function"
