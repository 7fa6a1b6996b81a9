"""The plain training loop. Each strategy is the smallest difference from it, given as fields and hooks of `Loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from shardscope.workload.pieces import loss_of, micro_batch_loss, named
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "Loop",
    "local",
    "local_state",
    "make_optimizer",
    "mark",
    "mean_over_ranks",
    "micro_batch_loss",
    "optimizer_options",
]


def mark(phase: str, micro_batch: int | None = None) -> AbstractContextManager[Any]:
    """A span in the trace: `shardscope::forward#3`, `shardscope::backward#3`, `shardscope::optimizer`."""
    return record_function(f"shardscope::{phase}" if micro_batch is None else f"shardscope::{phase}#{micro_batch}")


def make_optimizer(parameters: Iterable[nn.Parameter], spec: WorkloadSpec) -> torch.optim.Optimizer:
    """Fused AdamW. Plain parameters and those of each device mesh go in groups of their own: the kernel cannot mix."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], **optimizer_options(spec))


def optimizer_options(spec: WorkloadSpec) -> dict[str, Any]:
    """Keyword arguments of torch.optim.AdamW."""
    return {"lr": spec.learning_rate, "weight_decay": spec.weight_decay, "fused": True}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that lives on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_state(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Local parameters, gradients and optimizer state held now."""
    parameters = list(model.parameters())
    moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return (
        [local(parameter.data) for parameter in parameters],
        [local(parameter.grad) for parameter in parameters if parameter.grad is not None],
        [local(moment) for moment in moments],
    )


def mean_over_ranks(loss: torch.Tensor) -> torch.Tensor:
    """Average of a scalar over all ranks, for a data-parallel loss."""
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def _no_context(_index: int) -> AbstractContextManager[Any]:
    return nullcontext()


def _clear(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)


def _nothing() -> None:
    return None


@dataclass(kw_only=True)
class Loop:
    """A Trainer (strategies.base) that runs all micro-batches in turn on a model that communicates by itself.

    `model` owns the parameters under their plain names, `forward` is what is called (a wrapper, or the model itself).
    With `replicas` > 1 this rank processes its 1/replicas of every micro-batch.
    """

    spec: WorkloadSpec
    model: nn.Module
    forward: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: torch.device
    group_axes: Mapping[tuple[int, ...], str | Mapping[str, str]]
    replicas: int = 1
    replica: int = 0
    around_micro_batch: Callable[[int], AbstractContextManager[Any]] = _no_context
    after_backward: Callable[[], None] = _nothing
    after_request: Callable[[], None] = _nothing
    clear_gradients: Callable[[torch.optim.Optimizer], None] = _clear
    share: Callable[[torch.Tensor], torch.Tensor] = field(default=lambda loss: loss)
    held_state: Callable[[], Iterable[torch.Tensor]] | None = None  # optimizer state, where it hides elsewhere

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        """All micro-batches; see strategies.base.Trainer."""
        self.clear_gradients(self.optimizer)
        count, loss_function = self.spec.micro_batches, loss_of(self.model)
        total = torch.zeros((), device=self.device)
        for index, (tokens, wanted) in enumerate(self._micro_batches(inputs, targets)):
            with self.around_micro_batch(index):
                with mark("forward", index):
                    loss = loss_function(self.forward(tokens), wanted) / count
                with mark("backward", index):
                    torch.autograd.backward(loss)
            total += loss.detach()
        self.after_backward()
        return float(self.share(total) if share_loss else total)

    def _micro_batches(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for tokens, wanted in zip(
            inputs.chunk(self.spec.micro_batches), targets.chunk(self.spec.micro_batches), strict=True
        ):
            yield (
                tokens.chunk(self.replicas)[self.replica].to(self.device),
                wanted.chunk(self.replicas)[self.replica].to(self.device),
            )

    def optimizer_step(self) -> None:
        """Apply the optimizer."""
        with mark("optimizer"):
            self.optimizer.step()

    def request(self, inputs: torch.Tensor) -> None:
        """Forward one sample."""
        with torch.no_grad():
            self.forward(inputs.to(self.device))
        self.after_request()

    def gradients(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Full gradients by name."""
        for name, parameter in named(self.model):
            gradient = parameter.grad
            yield name, gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Local parameters, gradients, optimizer state."""
        parameters, gradients, moments = local_state(self.model, self.optimizer)
        if self.held_state is not None:
            moments = [local(moment) for moment in self.held_state()]
        return parameters, gradients, moments

    def axes(self) -> Mapping[tuple[int, ...], str | Mapping[str, str]]:
        """Axis by group."""
        return self.group_axes

    def close(self) -> None:
        """Drop model, optimizer and the hooks that hold them, so that their memory can go."""
        for parameter in self.model.parameters():
            parameter.grad = None
        vars(self).clear()
