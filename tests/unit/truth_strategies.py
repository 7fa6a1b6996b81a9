"""Strategies whose time is known: a custom operator that sleeps counts as compute and needs no core."""

import time
from typing import Any

import torch
import torch.distributed as dist
from bare_strategies import Bare, BareTrainer

from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.pipeline import Interleaved, Pipeline, ZeroBubble

BEFORE_MS, LATE_MS, UNDER_MS, AFTER_MS = 40.0, 60.0, 250.0, 40.0
SMALL, LARGE = 1024, 8 * 1024 * 1024  # float32 elements
STAGE_MS = 40.0  # forward, and backward


@torch.library.custom_op("truth::work", mutates_args=())
def work(x: torch.Tensor, milliseconds: float) -> torch.Tensor:
    """Known work."""
    time.sleep(milliseconds / 1000)
    return x.clone()


work.register_autograd(lambda context, gradient: (work(gradient, STAGE_MS), None))


class Late(Bare):
    """Rank 1 comes late to a small all-reduce; a large one runs under known work."""

    name = display_name = "late"

    def build(self, context: BuildContext) -> Trainer:
        return _LateTrainer(context.rank)


class _LateTrainer(BareTrainer):
    def __init__(self, rank: int) -> None:
        super().__init__(torch.ones(SMALL))
        self.rank, self.small, self.large = rank, torch.ones(SMALL), torch.ones(LARGE)

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        work(self.small, BEFORE_MS + (LATE_MS if self.rank == 1 else 0))
        dist.all_reduce(self.small)
        pending = dist.all_reduce(self.large, async_op=True)
        work(self.small, UNDER_MS)
        assert pending is not None
        pending.wait()
        work(self.small, AFTER_MS)
        return 1.0

    def request(self, inputs: torch.Tensor) -> None:
        work(self.small, 1.0)


@torch.library.custom_op("truth::hand_over", mutates_args=())
def hand_over(weight: torch.Tensor) -> torch.Tensor:
    """Takes no time forward; its gradient does."""
    return weight.clone()


hand_over.register_autograd(lambda context, gradient: work(gradient, STAGE_MS))


def stages_work(trainer: Any, weights_too: bool = False) -> Trainer:
    """Every stage does the same known work beside next to nothing; with `weights_too` its weights' gradient as well."""
    for part in trainer.parts.values():
        plain, weight = part.forward, torch.nn.Parameter(torch.zeros(1))
        part.register_parameter("late", weight)

        def forward(x: torch.Tensor, plain: Any = plain, weight: torch.Tensor = weight) -> torch.Tensor:
            result: torch.Tensor = work(plain(x), STAGE_MS)
            return result + hand_over(weight) if weights_too else result

        part.forward = forward
    return trainer  # type: ignore[no-any-return]


class Stages(Pipeline):
    """A pipeline of known work."""

    def build(self, context: BuildContext) -> Trainer:
        return stages_work(super().build(context))


class TwoStages(Interleaved):
    """The same with two stages on each rank."""

    def build(self, context: BuildContext) -> Trainer:
        return stages_work(super().build(context))


class InputsAndWeights(ZeroBubble):
    """The same with the backward in two parts, each as long as the forward.

    All ranks of a V end at the same time, so one that began late begins the next step late, too: left alone, the steps
    overlap and next to nothing is idle. The closed form is of a step that all begin together.
    """

    def build(self, context: BuildContext) -> Trainer:
        trainer: Any = stages_work(super().build(context), weights_too=True)
        plain = trainer.forward_backward

        def forward_backward(*arguments: Any, **named: Any) -> float:
            dist.barrier()
            result: float = plain(*arguments, **named)
            return result

        trainer.forward_backward = forward_backward
        return trainer  # type: ignore[no-any-return]


LATE = Late()
GPIPE = Stages(name="truth_gpipe", display_name="GPipe", schedule="ScheduleGPipe")
ONE_F_ONE_B = Stages(name="truth_1f1b", display_name="1F1B", schedule="Schedule1F1B")
INTERLEAVED = TwoStages(name="truth_interleaved", display_name="interleaved", schedule="ScheduleInterleaved1F1B")
ZERO_BUBBLE = InputsAndWeights(name="truth_zbv", display_name="ZBV", schedule="ScheduleZBVZeroBubble")
