"""Strategies that misbehave, named `toy_strategies:NAME` in tests."""

import time
from typing import Any

import torch
import torch.distributed as dist

from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.ddp import DDP


class _Toy(DDP):
    """DDP with something done before each step."""

    def before_step(self, rank: int, step: int) -> None:
        raise NotImplementedError

    def build(self, context: BuildContext) -> Trainer:
        trainer = super().build(context)
        plain, steps = trainer.forward_backward, 0

        def forward_backward(inputs: torch.Tensor, targets: torch.Tensor, **options: Any) -> float:
            nonlocal steps
            self.before_step(context.rank, steps)
            steps += 1
            return plain(inputs, targets, **options)

        trainer.forward_backward = forward_backward  # type: ignore[method-assign]
        return trainer


class Crashing(_Toy):
    """Rank 1 raises in its third step, while rank 0 waits for it."""

    name = "crashing"

    def before_step(self, rank: int, step: int) -> None:
        if rank == 1 and step == 2:
            raise ValueError("deliberate")


class Stuck(_Toy):
    """Rank 1 never comes back from its second step."""

    name = "stuck"

    def before_step(self, rank: int, step: int) -> None:
        if rank == 1 and step == 1:
            print("rank 1 is about to hang", flush=True)
            time.sleep(3600)


class Talkative(_Toy):
    """One all-reduce more than the plan says, in every step."""

    name = "talkative"

    def before_step(self, rank: int, step: int) -> None:
        dist.all_reduce(torch.ones(3, dtype=torch.float64))


CRASHING, STUCK, TALKATIVE = Crashing(), Stuck(), Talkative()
