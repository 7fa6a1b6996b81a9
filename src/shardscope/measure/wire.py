"""What training steps put on the loopback, by the kernel's own counter: a check of the plan's bytes from outside."""

import time
from collections.abc import Callable

import torch.distributed as dist

from shardscope.measure.network import loopback_bytes
from shardscope.measure.record import WireCount
from shardscope.measure.timing import Clock

__all__ = ["count_wire"]

_STEPS = 2
_IDLE_S = 0.1


def count_wire(backend: str, clock: Clock, step: Callable[[], None]) -> WireCount | None:
    """Run steps on all ranks between two readings of the counter; an idle stretch before shows what else talks.

    All ranks call it together. None where the bytes do not cross this machine's loopback or nobody counts them.
    """
    if backend != "gloo" or dist.get_world_size() < 2 or loopback_bytes() is None:
        return None
    clock.barrier()
    start, before = time.perf_counter_ns(), loopback_bytes() or 0
    time.sleep(_IDLE_S)
    idle, idle_ns = (loopback_bytes() or 0) - before, time.perf_counter_ns() - start
    clock.barrier()
    start, before = time.perf_counter_ns(), loopback_bytes() or 0
    clock.barrier()  # nobody starts before the counter is read
    for _ in range(_STEPS):
        step()
    clock.barrier()
    counted, took = (loopback_bytes() or 0) - before, time.perf_counter_ns() - start
    return WireCount(steps=_STEPS, loopback_bytes=counted, took_ns=took, idle_bytes=idle, idle_ns=idle_ns)
