"""Paired step times: baseline and candidate in turn in the same processes, so that drift cancels.

Every time is the slowest rank's: barriers before the clock starts, synchronisation before it stops, the maximum over
the ranks afterwards.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from shardscope.measure.device import Device
from shardscope.strategies.base import Trainer

__all__ = ["Batch", "Clock", "train_step"]

Batch = tuple[torch.Tensor, torch.Tensor]


def train_step(trainer: Trainer, batch: Batch) -> None:
    """One whole training step as timed and profiled (the loss is not shared between ranks)."""
    trainer.forward_backward(*batch, share_loss=False)
    trainer.optimizer_step()


class Clock:
    """Times calls that all ranks make together. `control` is a gloo group of all ranks for barriers and maxima."""

    def __init__(self, device: Device, control: dist.ProcessGroup) -> None:
        self._device = device
        self._control = control

    def barrier(self) -> None:
        """Meet all other ranks."""
        dist.barrier(group=self._control)

    def call(self, function: Callable[[], None]) -> int:
        """This rank's nanoseconds from the barrier until the device has finished `function`."""
        self._device.synchronize()
        self.barrier()
        start = time.perf_counter_ns()
        function()
        self._device.synchronize()
        return time.perf_counter_ns() - start

    def slowest(self, times: Sequence[int]) -> tuple[int, ...]:
        """Element-wise maximum over the ranks, the same on all of them."""
        if not times:
            return ()
        tensor = torch.tensor(times, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tuple(int(value) for value in tensor)

    def rounds(
        self, functions: Sequence[Callable[[], None]], count: int, on_round: Callable[[int], None]
    ) -> list[tuple[int, ...]]:
        """`count` rounds, each calling every function once in order; the slowest rank's times per round."""
        times: list[int] = []
        with quiet_garbage_collector():
            for index in range(count):
                times += [self.call(function) for function in functions]
                gc.collect(1)  # outside the clock: autograd leaves cycles behind
                on_round(index + 1)
        flat, width = self.slowest(times), len(functions)
        return [flat[start : start + width] for start in range(0, len(flat), width)]


@contextmanager
def quiet_garbage_collector() -> Iterator[None]:
    """Keep the garbage collector from running inside a timed step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
