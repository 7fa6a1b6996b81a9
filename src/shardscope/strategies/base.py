"""What a strategy is: declarations importable without torch, and one build function that imports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["Axes", "BuildContext", "Strategy", "Trainer"]

Axes = Mapping[tuple[int, ...], str | Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a build function gets: the process group (default world) is already initialised on every rank."""

    spec: WorkloadSpec
    rank: int
    world_size: int
    device: torch.device
    parameters: Mapping[str, Any]


class Trainer(Protocol):
    """One model under one strategy. Every method is called on all ranks together, in the same order."""

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        """All micro-batches of one step. inputs, targets: int64 [global_batch, sequence_length], the same on all ranks.

        Clears the gradients of the step before first. Gradients are complete afterwards. Returns the mean loss of the
        global batch, the same on every rank. Where a rank does not know it, sharing it takes one small collective,
        which training needs only when it logs and which the plan leaves out: timed and profiled steps pass
        share_loss=False and get this rank's own view (NaN where it has none).
        """

    def optimizer_step(self) -> None:
        """Apply the optimizer. Gradients stay in place until the next forward_backward, so state() shows them."""

    def request(self, inputs: torch.Tensor) -> None:
        """Forward one sample, int64 [1, sequence_length], no gradient, from input to output (latency)."""

    def gradients(self) -> Iterable[tuple[str, torch.Tensor | None]]:
        """Full gradients by the plain model's parameter names; complete on rank 0 (None elsewhere is allowed)."""

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Local tensors this rank holds now: parameters, gradients, optimizer state."""

    def axes(self) -> Axes:
        """Axis of each process group (sorted global ranks) that the strategy communicates in.

        Where one group serves two axes, a mapping from the kind of collective to its axis.
        """

    def close(self) -> None:
        """Release everything the build created (hooks, subgroups)."""


class Strategy(Protocol):
    """One row of the comparison.

    A strategy whose gradients are known to be wrong with some versions of torch may also have a text `remedy`: what to
    use instead. The run's notes say it when the comparison with `single` fails.
    """

    name: str
    display_name: str
    shards: tuple[str, ...]
    defaults: Mapping[str, Any]  # parameters and their default values
    memory_formula: str  # state bytes per parameter and rank, in words a table can show

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Why this strategy cannot run here, or None."""

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """State bytes and expected collectives from shapes alone."""

    def build(self, context: BuildContext) -> Trainer:
        """Build model and optimizer (torch is imported here)."""
