"""Does an emulated rate hold? One all-reduce, timed against the bytes that it put on the loopback."""

import time

import torch
import torch.distributed as dist

from shardscope.measure.network import loopback_bytes
from shardscope.measure.record import RateCheck

__all__ = ["check_rate"]

_LEAST_BYTES, _MOST_BYTES = 8_000_000, 64_000_000
_LASTS_S = 0.6  # as long as 8 MB take two ranks at 200 Mbit/s: what surrounds the transfer is then within the tolerance
_ROUNDS = 3


def check_rate(group: dist.ProcessGroup, rate_mbit: float) -> RateCheck | None:
    """All-reduce 8 MB or more on all ranks of the gloo group `group`, three times; the median one is kept.

    loopback_bytes counts all ranks, both directions and headers: in the job's own namespace nothing else is on lo.
    None where there is nothing to measure: one rank, or no counters.
    """
    ranks = dist.get_world_size(group)
    if ranks < 2 or loopback_bytes() is None:
        return None
    lasting = int(_LASTS_S * rate_mbit * 1e6 / 8 / (2 * (ranks - 1)))
    payload_bytes = min(max(_LEAST_BYTES, lasting), _MOST_BYTES) // 4 * 4
    payload = torch.ones(payload_bytes // 4, dtype=torch.float32)
    found = []
    for _ in range(_ROUNDS):
        payload.fill_(1.0)
        dist.barrier(group=group)
        before, start = loopback_bytes() or 0, time.perf_counter_ns()
        dist.all_reduce(payload, group=group)
        dist.barrier(group=group)  # the slowest rank's time, within a message's
        found.append((time.perf_counter_ns() - start, (loopback_bytes() or 0) - before))
    took, crossed = sorted(found)[_ROUNDS // 2]
    return RateCheck(payload_bytes=payload_bytes, loopback_bytes=crossed, took_ns=took)
