"""The matmul rate this machine reaches with all ranks at work: the denominator of MFU."""

import time

import torch

from shardscope.measure.device import Device

__all__ = ["matmul_flops_per_s"]

_LEAST_S = 0.25
_SIZES = {"cpu": 1024, "cuda": 8192}


def matmul_flops_per_s(device: Device, dtype: str) -> float:
    """Best rate of a square matrix product on this rank, in FLOP/s (2·n³ per product).

    Call it on all ranks at once, since they share memory bandwidth and clock; the machine's peak is their sum.
    """
    size = _SIZES[device.kind]
    kind = getattr(torch, dtype)
    left = torch.randn(size, size, dtype=torch.float32, device=device.device).to(kind)
    right = torch.randn(size, size, dtype=torch.float32, device=device.device).to(kind)
    out = torch.mm(left, right)
    device.synchronize()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < _LEAST_S or best == float("inf"):
        begin = time.perf_counter()
        torch.mm(left, right, out=out)
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size**3 / best
