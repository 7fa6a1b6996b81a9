"""Request latency: one sample, forward only, no gradient, from input to output."""

from collections.abc import Callable, Sequence

import torch

from shardscope.measure.timing import Clock
from shardscope.strategies.base import Trainer

__all__ = ["request_latencies"]

_WARMUP = 3


def request_latencies(
    clock: Clock, trainers: Sequence[Trainer], sample: torch.Tensor, count: int, on_round: Callable[[int], None]
) -> list[tuple[int, ...]]:
    """Nanoseconds of `count` requests per trainer, taken in turn. sample: int64 [1, sequence_length].

    The slowest rank's time counts: in a pipeline the last stage has the output, in the others every rank.
    """
    functions = [lambda trainer=trainer: trainer.request(sample) for trainer in trainers]
    clock.rounds(functions, _WARMUP, lambda _: None)
    rounds = clock.rounds(functions, count, on_round)
    return [tuple(times[index] for times in rounds) for index in range(len(trainers))]
