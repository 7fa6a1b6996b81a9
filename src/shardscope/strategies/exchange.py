"""What the strategies that exchange parts by all-to-alls have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["exchange", "same_for_all"]


def same_for_all(what: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """One entry where all layers have the same size, else one per layer."""
    found = set(sizes.values())
    return {what: found.pop()} if len(found) == 1 else dict(sizes)


def exchange(parts: torch.Tensor) -> torch.Tensor:
    """parts[i] goes to rank i, and the result's [i] came from rank i; gradients go the other way."""
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor

    everyone: Any = dist.group.WORLD
    wait: Any = wait_tensor
    received: torch.Tensor = wait(all_to_all_single_autograd(parts.contiguous(), None, None, everyone))
    return received
