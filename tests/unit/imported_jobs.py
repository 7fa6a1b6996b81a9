"""Traces of a small foreign job, for tests of imported runs."""

from pathlib import Path
from typing import Any

from tests.unit.handmade import HandMade

__all__ = ["job"]

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GROUPS = [{"pg_name": "0", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]}]


def job(
    folder: Path, *, late: float = 100.0, steps: int = 4, longer: float = 0.0, ranks: tuple[int, ...] = (0, 1)
) -> Path:
    """Two GPUs: 500 µs of compute, then an all-reduce of 200 µs for which rank 1 is `late`; 1 ms per step."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        trace = HandMade(rank, 2, "nccl", GROUPS)
        for number in range(steps):
            # Steps vary by some µs, so that there is noise.
            begin, jitter = number * (1100.0 + longer), (number % 3) * 2.0
            ready = begin + 500 + longer + jitter + (late if rank else 0)
            end = begin + 700 + longer + jitter + late
            trace.step(number, begin, end + 200)
            trace.kernel("gemm", begin + 10, ready, correlation=10 * number + 1, launch=begin + 1)
            args: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "0"}
            args |= {"Process Group Ranks": "[0, 1]", "Process Group Description": "mesh_tp"}
            trace.kernel(ALL_REDUCE, ready, end, 20, correlation=10 * number + 2, launch=begin + 3, **args)
            trace.kernel("gemm", end, end + 190, correlation=10 * number + 3, launch=begin + 5)
        trace.write(folder / f"rank{rank}.json")
    return folder
