"""Small sound traces of every layout that the analysis knows: what fuzzing starts from."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.handmade import HandMade, dims
from tests.unit.imported_jobs import job

from shardscope.measure.record import CommunicationCall, Plan, RunRecord, StrategyRecord, TraceFile
from shardscope.vocabulary import Axis, Kind, Status
from shardscope.workload.spec import WorkloadSpec

__all__ = ["write_seeds"]


def write_seeds(folder: Path) -> list[Path]:
    """One folder of traces per layout, each analysed without complaint."""
    makers = (_gpu, _packed, _streams, _pipeline, _gloo, _messages, _own, _unmarked, _list, _graph)
    found = []
    for maker in makers:
        place = folder / maker.__name__.strip("_")
        place.mkdir(parents=True)
        maker(place)
        found.append(place)
    return found


def _gpu(folder: Path) -> None:
    job(folder, steps=3)


def _packed(folder: Path) -> None:
    for path in sorted(job(folder, steps=2).iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 6))
        path.unlink()


def _streams(folder: Path) -> None:
    """Three communication streams, copies, memory instants, Python frames, a name that tells nothing."""
    trace = HandMade(0, 4, "nccl").step(1, 0, 1000).step(2, 1000, 2000)
    for step in (0, 1000):
        trace.kernel("gemm", step + 10, step + 400, 7, correlation=step + 1, launch=step + 2)
        trace.kernel(
            "ncclDevKernel_AllGather_RING_LL", step + 100, step + 500, 20, correlation=step + 2, launch=step + 4
        )
        trace.kernel("ncclDevKernel_ReduceScatter_Sum_f32", step + 300, step + 700, 21, correlation=step + 3)
        trace.kernel("ncclKernel_Generic", step + 650, step + 800, 22, correlation=step + 4, launch=step + 8)
        trace.add("gpu_memcpy", "Memcpy HtoD", step + 820, step + 850, 7, device=0, stream=7, bytes=4096)
        trace.add("python_function", "train.py(3): nccl_step", step + 5, step + 900)
        trace.op("aten::mm", step + 1, step + 9, **dims(4, 4))
        trace.kernel("late gemm", step + 950, step + 1100, 7, correlation=step + 5, launch=step + 940)
    trace.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 1, "ts": 1e6})
    trace.events.append({"ph": "s", "id": 3, "pid": 10, "tid": 1, "ts": 1e6, "cat": "ac2g", "name": "ac2g"})
    trace.write(folder / "rank0.json")


def _pipeline(folder: Path) -> None:
    """Two stages on GPUs that send two micro-batches on and back, in coalesced kernels with metadata."""
    for rank in (0, 1):
        trace = HandMade(rank, 2, "nccl").step(1, 0, 1000)
        for number, (start, end) in enumerate(((0, 200), (200, 400), (500, 700), (700, 900))):
            shift = 100 * rank
            trace.kernel("gemm", start + shift, end + shift, 7, correlation=number + 1, launch=start + 1)
            args: dict[str, Any] = {"Process Group Name": "pp", "Process Group Ranks": "[0, 1]"}
            args |= {
                "Collective name": "send" if (number < 2) == (rank == 0) else "recv",
                "Src Rank": rank,
                "Dst Rank": 1 - rank,
            }
            trace.kernel("ncclDevKernel_SendRecv", end, end + 90, 20, correlation=20 + number, launch=start + 3, **args)
        trace.write(folder / f"rank{rank}.json")


def _gloo(folder: Path) -> None:
    """CPU ranks; op and span of every collective, one nested in an autograd hook."""
    for rank, ready in ((0, 10), (1, 30)):
        trace = HandMade(rank)
        for step in (0, 100):
            trace.step(1 + step // 100, step, step + 95).op("aten::mm", step, step + ready, **dims(8, 8))
            trace.op("c10d::allreduce_", step + ready, step + ready + 1, **dims(4))
            trace.span("gloo:all_reduce", step + ready + 1, step + 47, **dims(4))
            trace.op("c10d::_reduce_scatter_base_", step + 48, step + 50, **dims(8, 4))
            trace.span("gloo:all_reduce", step + 50, step + 60, 8, **dims(8))
            trace.op("aten::add", step + 50, step + 80).op("_c10d_functional::wait_tensor", step + 80, step + 82)
        trace.write(folder / f"rank{rank}.json")


def _messages(folder: Path) -> None:
    """A pipeline over gloo with micro-batch marks."""
    for rank in (0, 1):
        trace = HandMade(rank).step(1, 0, 200)
        for number in (0, 1):
            start = 20 + 60 * number + 25 * rank
            trace.span(f"shardscope::forward#{number}", start, start + 20, 1).op("aten::mm", start, start + 20)
            peer = {"Concrete Inputs": ["", "", str(1 - rank), "0"], **dims(4)}
            trace.op("c10d::send" if rank == 0 else "c10d::recv_", start + 20, start + 22, **peer)
            trace.span("gloo:send" if rank == 0 else "gloo:recv", start + 20, start + 40, 1, **dims(4))
        trace.write(folder / f"rank{rank}.json")


def _own(folder: Path) -> None:
    """One of our own runs, with its record and sidecar."""
    _gloo(folder)
    calls = tuple(
        CommunicationCall(step=step, kind=kind, axis=Axis.DATA, group=(0, 1), bytes=16, op=op)
        for step in (1, 2)
        for kind, op in (
            (Kind.ALL_REDUCE, "c10d::allreduce_"), (Kind.REDUCE_SCATTER, "c10d::_reduce_scatter_base_"),
        )
    )  # fmt: skip
    spec = WorkloadSpec(
        name="w", layers=1, hidden=8, heads=1, sequence_length=8, global_batch=2, micro_batches=1,
    )  # fmt: skip
    record = RunRecord(
        schema=1, status=Status.OK, reason=None, started_at="", finished_at="", workload=spec,
        strategy=StrategyRecord(name="s", display_name="S", shards=(), parameters={}), baseline="ddp",
        plan=Plan(parameter_count=1, state=(), collectives=()),
        traces=tuple(TraceFile(rank=rank, file=f"rank{rank}.json", bytes=1) for rank in (0, 1)),
        communication={"0": calls, "1": calls},
    )  # fmt: skip
    (folder / "run.json").write_bytes(msgspec.json.encode(record))


def _unmarked(folder: Path) -> None:
    trace = HandMade(None).op("aten::mm", 0, 50, **dims(4)).op("aten::add", 10, 20)
    trace.op("c10d::broadcast_", 50, 52, **dims(4)).span("gloo:broadcast", 52, 90, **dims(4))
    trace.write(folder / "trace.json")


def _list(folder: Path) -> None:
    """The list form, times as text."""
    trace = HandMade(0, 1).step(1, 0, 100).kernel("gemm", 10, 60, correlation=1, launch=2)
    events = [{**event, "ts": f"{event['ts']:.3f}", "dur": f"{event['dur']:.3f}"} for event in trace.events]
    (folder / "rank0.json").write_text(json.dumps(events), encoding="utf-8")


def _graph(folder: Path) -> None:
    """One launch, several kernels; sync rows, annotations on the device, two devices."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 500)
    for number, start in enumerate((50, 150, 250)):
        trace.kernel("gemm", start, start + 90, 7, correlation=9, **{"graph node id": number})
        trace.add("gpu_user_annotation", "nccl:all_reduce", start, start + 90, 7, device=0, stream=7)
    trace.add("cuda_runtime", "cudaGraphLaunch", 10, 20, 1, correlation=9)
    trace.add("cuda_sync", "Stream Sync", 400, 450, 7, device=0, stream=7)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32", 300, 420, 20, correlation=10, launch=30)
    trace.write(folder / "rank0.json")
