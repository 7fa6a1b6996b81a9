"""What a model offers, whoever made it: its blocks, its loss, its parameters' names in the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from shardscope.errors import ConfigError

__all__ = ["Loss", "blocks_of", "loss_of", "micro_batch_loss", "named"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def micro_batch_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens. logits [samples, sequence, vocabulary], targets int64 [samples, sequence]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def loss_of(model: nn.Module) -> Loss:
    """The model's own loss, or cross-entropy: (outputs, targets) → mean over all tokens."""
    return cast(Loss, getattr(model, "loss", None) or micro_batch_loss)


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of a whole model or of a stage by their names in the whole model."""
    names = getattr(model, "whole_names", None)
    for name, parameter in model.named_parameters():
        yield name if names is None else names[name], parameter


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a whole model or of a stage, in order. Raises ConfigError if it offers none."""
    given = getattr(model, "blocks", None)
    if given is None:
        raise ConfigError(f"{type(model).__name__} offers no `blocks`; see docs/own-model.md")
    items = given.values() if isinstance(given, nn.ModuleDict) else given
    return [model.get_submodule(item) if isinstance(item, str) else item for item in items]
