"""Writes a GPU trace of any size as torch.profiler writes it: operators, Python frames, launches, kernels, flows, NCCL.

One rank of a data-parallel job of eight. Every step runs the same layers; all-reduces of the backward pass overlap with
it on a stream of their own. Nothing is random, so the same size gives the same bytes.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TextIO

__all__ = ["write_trace"]

LAYERS = 24
KERNELS_PER_LAYER = 12  # forward and backward together
WORLD_SIZE = 8
HOST, DEVICE = 4242, 0
COMPUTE_STREAM, NCCL_STREAM = 7, 20
OP_US, KERNEL_US, ALL_REDUCE_US = 30.0, 40.0, 300.0
STEP_US = LAYERS * KERNELS_PER_LAYER * KERNEL_US + 2000.0
ORIGIN_US = 1_000_000.0
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_"
    "execute_segment_k_off_kernel__5x_cublas"
)
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017755648, "numSms": 132}],
  "distributedInfo": {
    "backend": "nccl", "rank": 0, "world_size": %d, "pg_count": 1, "nccl_version": "2.27.3",
    "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": %d, "ranks": [%s]}]
  },
  "record_shapes": 1,
  "with_stack": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1759276800000000000,
  "traceEvents": [
"""
TAIL = """  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": %.3f}
  ],
  "traceName": "rank0.json"
}
"""


def write_trace(path: Path, megabytes: float) -> int:
    """Write whole steps until the file holds at least `megabytes` (10⁶ bytes); returns the number of timed events."""
    ranks = ", ".join(map(str, range(WORLD_SIZE)))
    events = 0
    with path.open("w", encoding="utf-8", buffering=1 << 20) as out:
        written = out.write(HEAD % (WORLD_SIZE, WORLD_SIZE, ranks))
        ids = count(1)
        for step in count():
            if written >= megabytes * 1e6:
                break
            size, number = _write_step(out, step, ids)
            written += size
            events += number
        out.write(TAIL % (ORIGIN_US + step * STEP_US))
    return events


def _write_step(out: TextIO, step: int, ids: Iterator[int]) -> tuple[int, int]:
    begin = ORIGIN_US + step * STEP_US
    size = number = 0
    mark = _event("user_annotation", f"ProfilerStep#{step}", HOST, HOST, begin, STEP_US - 10, f'"External id": {step}')
    size += out.write(mark)
    for layer in range(LAYERS):
        for place in range(KERNELS_PER_LAYER):
            index = layer * KERNELS_PER_LAYER + place
            text, events = _kernel(begin, index, next(ids), layer, place)
            size += out.write(text)
            number += events
        text, events = _all_reduce(begin, layer, next(ids))
        size += out.write(text)
        number += events
    return size, number + 1


def _kernel(begin: float, index: int, call: int, layer: int, place: int) -> tuple[str, int]:
    """One operator with its Python frames, child operator, launch, kernel and the flow between the two."""
    host = begin + 20 + index * OP_US
    device = begin + 500 + index * KERNEL_US
    gemm = place % 3 == 0
    operator, kernel = ("aten::mm", GEMM) if gemm else ("aten::add", POINTWISE)
    shapes = "[[4096, 4096], [4096, 11008]]" if gemm else "[[4096, 11008], [4096, 11008]]"
    frame = f"torch/nn/modules/module.py(1784): _call_impl layer_{layer}"
    function = f"model/block.py({100 + place}): forward"
    ids = f'"External id": {call}, "Sequence number": {call}'
    detail = (
        f'{ids}, "Record function id": 0, "Concrete Inputs": ["", ""], '
        '"Input type": ["c10::BFloat16", "c10::BFloat16"], '
        f'"Input Strides": [[4096, 1], [1, 4096]], "Input Dims": {shapes}, "Ev Idx": {call}'
    )
    launch = f'"External id": {call}, "cbid": 307, "correlation": {call}'
    run = (
        f'"External id": {call}, "queued": 0, "device": {DEVICE}, "context": 1, "stream": {COMPUTE_STREAM}, '
        f'"correlation": {call}, "registers per thread": 168, "shared memory": 213248, "blocks per SM": 1.0, '
        '"warps per SM": 12.0, "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19'
    )
    stack = f'"Python parent id": {index}, "Python id": {call}, "Python thread": 0, "Ev Idx": {call}'
    lines = (
        _event("python_function", frame, HOST, HOST, host, 26, stack),
        _event("python_function", function, HOST, HOST, host + 1, 24, stack),
        _event("cpu_op", operator, HOST, HOST, host + 2, 20, detail),
        _event("cpu_op", "aten::empty", HOST, HOST, host + 3, 2, detail),
        _event("cuda_runtime", "cudaLaunchKernelExC", HOST, HOST, host + 8, 6, launch),
        _event("kernel", kernel, DEVICE, COMPUTE_STREAM, device, 39 if gemm else 35, run),
        _flow("s", call, HOST, HOST, host + 8),
        _flow("f", call, DEVICE, COMPUTE_STREAM, device),
    )
    return "".join(lines), 6


def _all_reduce(begin: float, layer: int, call: int) -> tuple[str, int]:
    """The all-reduce of one layer's gradients, launched from the backward pass."""
    host = begin + 20 + (layer + 1) * KERNELS_PER_LAYER * OP_US - 4
    device = begin + 700 + (layer + 1) * KERNELS_PER_LAYER * KERNEL_US
    group = (
        '"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 25165824, "Out msg nelems": 25165824, '
        f'"Group size": {WORLD_SIZE}, "Process Group Name": "0", "Process Group Description": "default_pg", '
        '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
    )
    run = (
        f'"External id": {call}, "queued": 0, "device": {DEVICE}, "context": 1, "stream": {NCCL_STREAM}, '
        f'"correlation": {call}, "registers per thread": 96, "shared memory": 84256, "grid": [24, 1, 1], '
        f'"block": [544, 1, 1], {group}'
    )
    lines = (
        _event("cpu_op", "record_param_comms", HOST, HOST, host, 3, f'"External id": {call}, {group}, "Seq": {call}'),
        _event("cuda_runtime", "cudaLaunchKernelExC", HOST, HOST, host + 1, 1.5, f'"correlation": {call}'),
        _event("kernel", ALL_REDUCE, DEVICE, NCCL_STREAM, device, ALL_REDUCE_US, run),
        _flow("s", call, HOST, HOST, host + 1),
        _flow("f", call, DEVICE, NCCL_STREAM, device),
    )
    return "".join(lines), 3


def _event(category: str, name: str, process: int, thread: int, start: float, duration: float, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread},\n'
        f'    "ts": {start:.3f}, "dur": {duration:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def _flow(phase: str, call: int, process: int, thread: int, time: float) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {call}, "pid": {process}, "tid": {thread}, "ts": {time:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }},\n'
    )
