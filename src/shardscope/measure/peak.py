"""The rates this machine reaches with all ranks at work: of a matrix product, the denominator of MFU, and of a copy."""

import time

import torch
import torch.distributed as dist

from shardscope.measure.device import Device

__all__ = ["copy_bytes_per_s", "matmul_flops_per_s"]

_LEAST_S = 0.25
_SIZES = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}  # bytes: far beyond the caches
_COPIES = 5


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


def copy_bytes_per_s(device: Device, control: dist.ProcessGroup) -> float:
    """Best rate of a large copy, bytes read and written together, all ranks at once: their sum, the same on each."""
    source = torch.ones(_COPIED[device.kind], dtype=torch.uint8, device=device.device)
    target = torch.empty_like(source)
    dist.barrier(group=control)
    best = float("inf")
    for _ in range(_COPIES):
        device.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        device.synchronize()
        best = min(best, time.perf_counter() - begin)
    rate = torch.tensor(2.0 * source.numel() / best, dtype=torch.float64)
    dist.all_reduce(rate, group=control)
    return float(rate)
