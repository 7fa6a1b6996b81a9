"""Builds the workload's model, the built-in one or the user's own, whole or the part that a pipeline stage holds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardscope.errors import ConfigError
from shardscope.workload import transformer
from shardscope.workload.pieces import blocks_of, loss_of, named
from shardscope.workload.source import load_builder
from shardscope.workload.spec import WorkloadSpec

__all__ = ["Stage", "blocks_of", "build_model", "build_stage", "loss_of", "named"]


class Stage(nn.Module):
    """A part of a user's own model. Its parameters' names follow from how the user made it: see `named`."""

    def __init__(self, part: nn.Module, whole: nn.Module, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.part = part
        self.blocks = list(blocks)  # a plain list: they are submodules of `part` already
        names = {id(parameter): name for name, parameter in whole.named_parameters()}
        self.whole_names = {name: names[id(parameter)] for name, parameter in self.named_parameters()}
        if hasattr(whole, "loss"):
            self.loss = whole.loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.part(x))


def build_model(spec: WorkloadSpec) -> nn.Module:
    """The whole model on torch's default device in the spec's dtype, the same on every call and every rank.

    Raises ConfigError, one line, when the user's builder fails or what it returns is not as workload/protocol.py says.
    """
    model = transformer.build(spec) if spec.model is None else _own(spec)
    if spec.recompute:
        for block in blocks_of(model):
            _recompute(block)
    return model


def build_stage(spec: WorkloadSpec, layers: Sequence[int], *, first: bool, last: bool) -> nn.Module:
    """Blocks `layers`, with what comes before the blocks if `first` and after them if `last`.

    A user's own model is built whole and cut, then the rest is given up.
    """
    if spec.model is None:
        model = transformer.build(spec, layers, first=first, last=last)
        if spec.recompute:
            for block in blocks_of(model):
                _recompute(block)
        return model
    whole: Any = build_model(spec)
    blocks = blocks_of(whole)
    bounds = range(layers[0], layers[-1] + 1) if layers else range(0)
    return Stage(whole.stage(first, bounds, last), whole, [blocks[layer] for layer in bounds])


def _own(spec: WorkloadSpec) -> nn.Module:
    builder = load_builder(spec)
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(spec.seed)
            model: Any = builder(spec)
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise ConfigError(
            f"workload {spec.name}: model {spec.model} cannot be built ({type(error).__name__}: {error}); correct it"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"workload {spec.name}: model {spec.model} returned a {type(model).__name__}, not a torch.nn.Module"
        )
    return model.train() if spec.dtype == "float32" else model.train().to(getattr(torch, spec.dtype))


def _recompute(block: nn.Module) -> None:
    """Keep only the block's input; backward computes the rest again (torch's non-reentrant checkpoint).

    Inside the module's hooks, not around them: FSDP gathers the parameters once for both.
    """
    forward = block.forward

    @functools.wraps(forward)
    def again(*arguments: Any, **named: Any) -> Any:
        run = functools.partial(forward, **named)
        # No dropout anywhere: there is no random state to bring back.
        return checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)

    block.forward = again
