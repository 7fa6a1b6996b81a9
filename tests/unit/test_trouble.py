"""Strange and damaged traces of one rank, each small enough to compute the right answer by hand (times in µs)."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from handmade import ORIGIN_US, HandMade, dims

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import RankResult, StepRow
from shardscope.vocabulary import Evidence, Kind

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
ONE_NAME = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def rank_of(path: Path, **options: Any) -> RankResult:
    (rank,) = attribute_paths([path], **options).ranks
    return rank


def row_of(path: Path) -> StepRow:
    (row,) = rank_of(path).steps
    return row


def codes(rank: RankResult) -> dict[str, int]:
    return {warning.code: warning.count for warning in rank.warnings}


def body(rank: int | None = 0, world: int = 1, **options: Any) -> HandMade:
    """Step [0, 100): gemm [10, 50), all-reduce [40, 70) on its own stream, gemm [75, 90): 55 + 20 exposed + 25 rest."""
    trace = HandMade(rank, world, "nccl", **options).step(1, 0, 100)
    trace.kernel("gemm", 10, 50, correlation=1, launch=5).kernel(NCCL, 40, 70, 20, correlation=2, launch=6)
    return trace.kernel("gemm", 75, 90, correlation=3, launch=7)


def is_body(row: StepRow) -> bool:
    return (row.window_ns, row.compute_ns, row.busy_ns, row.attributed_ns, row.host_other_ns) == (
        100 * US, 55 * US, {Kind.ALL_REDUCE: 30 * US}, {Kind.ALL_REDUCE: 20 * US}, 25 * US,
    )  # fmt: skip


def test_unescaped_quotes_and_control_characters(tmp_path: Path) -> None:
    trace = body().op("say QUOTE twice", 1, 2).op("tabTABnewlineNL", 3, 4)
    path = trace.write(tmp_path / "rank0.json")
    text = path.read_text().replace("QUOTE", '"hi"').replace("TAB", "\t").replace("NL", "\n")
    path.write_text(text)
    with pytest.raises(ValueError):
        json.loads(text)
    rank = rank_of(path)
    assert is_body(rank.steps[0])
    assert codes(rank) == {"bad_escape": 1, "bad_bytes": 1}


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(body().events))
    rank = rank_of(path)
    assert is_body(rank.steps[0])
    assert (rank.rank, rank.world_size) == (0, None)


def test_a_trace_of_2021(tmp_path: Path) -> None:
    """Capital categories, marks among the operators, "external id" in small letters, kinds only by the operator."""
    trace = HandMade(None).add("Operator", "ProfilerStep#7", 0, 100).add("Operator", "nccl:_all_gather_base", 5, 9)
    trace.events[-1]["args"] = {"external id": 33}
    trace.add("Runtime", "cudaLaunchKernel", 6, 7, correlation=2).add(
        "Runtime", "cudaLaunchKernel", 2, 3, correlation=1
    )
    trace.add("Kernel", "volta_sgemm", 10, 50, 7, device=0, stream=7, correlation=1)
    trace.add("Kernel", "ncclKernel_SendRecv", 40, 70, 20, device=0, stream=20, correlation=2, **{"external id": 33})
    trace.add("Memcpy", "Memcpy HtoD", 80, 85, 7, device=0, stream=7, correlation=9)
    trace.add("Memset", "Memset (Device)", 85, 86, 7, device=0, stream=7, correlation=10)
    trace.add("Runtime", "cudaMemcpyAsync", 8, 9, correlation=9)
    rank = rank_of(trace.write(tmp_path / "worker3.1612345678.pt.trace.json"))
    (row,) = rank.steps
    assert (rank.rank, row.step, row.window_ns, row.compute_ns) == (3, 7, 100 * US, 40 * US)
    assert row.attributed_ns == {Kind.ALL_GATHER: 20 * US}
    assert (row.copies_exposed_ns, row.host_other_ns) == (6 * US, 34 * US)
    assert rank.evidence_fraction[Evidence.OP] == 1


def test_an_operator_by_external_id_alone(tmp_path: Path) -> None:
    """Launch calls are not recorded: only the id ties the kernel to its operation."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100).op("nccl:all_to_all", 5, 9, **{"External id": 33})
    trace.kernel(ONE_NAME, 40, 70, 20, **{"External id": 33})
    assert row_of(trace.write(tmp_path / "rank0.json")).attributed_ns == {Kind.ALL_TO_ALL: 30 * US}


def test_negative_and_unfinished_durations(tmp_path: Path) -> None:
    trace = body().kernel("negative", 95, 60, correlation=4, launch=8).op("aten::never_ended", 20, 30)
    del trace.events[-1]["dur"]
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert is_body(rank.steps[0])
    assert codes(rank) == {"negative_duration": 1, "no_duration": 1}


def test_two_kernels_of_one_stream_overlap(tmp_path: Path) -> None:
    """Programmatic dependent launch: the next kernel starts before its predecessor ends. Union, nothing clipped."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    trace.kernel("first", 10, 40, correlation=1, launch=1).kernel("second", 35, 60, correlation=2, launch=2)
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert rank.steps[0].compute_ns == 50 * US
    assert codes(rank) == {}


@pytest.mark.parametrize("category", ["gpu_user_annotation", "user_annotation"])
def test_the_step_mark_on_host_and_device(tmp_path: Path, category: str) -> None:
    """The device's copy of the mark, later and shorter, under either category, is not a second step."""
    trace = body().step(2, 100, 200).kernel("gemm", 110, 150, correlation=4, launch=105)
    trace.add(category, "ProfilerStep#1", 10, 90, 7, stream=7).add(category, "ProfilerStep#2", 110, 150, 7, stream=7)
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert [(row.step, row.window_ns, row.compute_ns) for row in rank.steps] == [
        (1, 100 * US, 55 * US),
        (2, 100 * US, 40 * US),
    ]
    assert codes(rank) == {}


def test_a_first_step_with_compilation(tmp_path: Path) -> None:
    """Flagged and shown, never averaged: the summary is a real step of usual length."""
    trace = HandMade(0, 1, "nccl")
    edges = [0, 5000, 5100, 5204, 5306, 5401]
    for number, (start, end) in enumerate(pairwise(edges)):
        trace.step(number, start, end).kernel("gemm", end - 60, end - 10, correlation=number + 1, launch=end - 70)
    result = attribute_paths([trace.write(tmp_path / "rank0.json")])
    assert [row.outlier for row in result.ranks[0].steps] == [True, False, False, False, False]
    assert result.summary_step == 3  # 5000, 100, 104, 102, 95: the median is 102
    assert result.ranks[0].steps[0].host_other_ns == 4950 * US


@pytest.mark.parametrize("order", ["before", "after"])
def test_metadata_after_the_events_and_shortened_rank_lists(tmp_path: Path, order: str) -> None:
    """Lists of many ranks are shortened with dots in the trace; the world's is known by its size."""
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 512, "ranks": "[0, 1, 2, ..., 511]"}]
    trace = HandMade(5, 512, "nccl", groups).step(1, 0, 100)
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, ..., 511]"}
    trace.kernel(NCCL, 40, 70, 20, **args, **{"Group size": 512})
    document = {**trace.top, "traceEvents": trace.events}
    if order == "after":
        document = {"traceEvents": trace.events, **trace.top}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    rank = rank_of(path)
    assert (rank.rank, rank.world_size) == (5, 512)
    assert rank.groups[0].ranks == tuple(range(512))


def test_coalesced_messages_of_a_generic_kernel(tmp_path: Path) -> None:
    """The coalesced operation names no kind; the operations it was made of do, and they launched nothing themselves."""
    trace = HandMade(0, 2, "nccl").step(1, 0, 200)
    trace.op("record_param_comms", 5, 9, **{"Collective name": "allreduce"})
    trace.kernel("ncclDevKernel_Generic_4", 20, 30, 20, correlation=1, launch=6)
    trace.op("record_param_comms", 40, 42, **{"Collective name": "send"})
    trace.op("record_param_comms", 43, 45, **{"Collective name": "recv"})
    trace.op("nccl:coalesced", 46, 52).kernel("ncclDevKernel_Generic_4", 60, 90, 20, correlation=2, launch=48)
    trace.op("nccl:coalesced", 100, 110).kernel("ncclDevKernel_Generic_4", 120, 125, 20, correlation=3, launch=105)
    trace.op("c10d::allreduce_coalesced_", 130, 140).kernel(ONE_NAME, 150, 170, 20, correlation=4, launch=135)
    assert row_of(trace.write(tmp_path / "rank0.json")).busy_ns == {
        Kind.ALL_REDUCE: (10 + 20) * US,
        Kind.SEND_RECEIVE: 30 * US,
        Kind.UNKNOWN: 5 * US,
    }


def test_one_name_for_all_kinds(tmp_path: Path) -> None:
    """Every kernel is called SendRecv; the operation that launched it tells what it is."""
    trace = HandMade(0, 2, "nccl").step(1, 0, 200)
    kinds = {
        "nccl:all_to_all": Kind.ALL_TO_ALL,
        "nccl:_all_gather_base": Kind.ALL_GATHER,
        "nccl:_reduce_scatter_base": Kind.REDUCE_SCATTER,
        "nccl:broadcast": Kind.BROADCAST,
        "nccl:send 0->1": Kind.SEND_RECEIVE,
    }
    for place, name in enumerate(kinds):
        start = 40 * place
        trace.op(name, start, start + 5).kernel(
            ONE_NAME, start + 10, start + 20 + place, 20, correlation=place + 1, launch=start + 2
        )
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert rank.steps[0].busy_ns == {kind: (10 + place) * US for place, kind in enumerate(kinds.values())}
    assert rank.evidence_fraction[Evidence.OP] == 1


def test_names_that_contradict_the_metadata(tmp_path: Path) -> None:
    trace = HandMade(0, 2, "nccl").step(1, 0, 100).op("nccl:all_gather", 1, 9)
    trace.kernel(NCCL, 10, 30, 20, correlation=1, launch=5, **{"Collective name": "_reduce_scatter_base"})
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert rank.steps[0].busy_ns == {Kind.REDUCE_SCATTER: 20 * US}
    assert rank.evidence_fraction[Evidence.METADATA] == 1


@pytest.mark.parametrize(
    ("runtime", "category", "names", "device"),
    [
        ("xpu_runtime", "kernel", ["oneccl_allreduce_large", "gemm_kernel<bf16>"], "xpu"),
        ("mtia_runtime", "mtia_ccp_events", ["mtia_all_reduce", "fba_mm"], "mtia"),
        ("privateuse1_runtime", "kernel", ["hcom_allReduce__123_0", "MatMulV2"], "privateuse1"),
        ("privateuse1_runtime", "privateuse1_kernel", ["HcclAllReduce", "aclnnMatmul"], "privateuse1"),
    ],
)
def test_other_accelerators(tmp_path: Path, runtime: str, category: str, names: list[str], device: str) -> None:
    trace = HandMade(0, 2).step(1, 0, 100)
    for correlation, (name, start, end) in enumerate([(names[0], 40, 70), (names[1], 10, 50)], start=1):
        trace.add(runtime, "Launch", correlation, correlation + 1, correlation=correlation)
        trace.add(category, name, start, end, correlation, device=0, stream=correlation, correlation=correlation)
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert rank.device == device
    assert rank.steps[0].compute_ns == 40 * US
    assert rank.steps[0].attributed_ns == {Kind.ALL_REDUCE: 20 * US}
    assert rank.evidence_fraction[Evidence.NAME] == 1


def test_annotations_that_repeat_a_collective_and_sync_rows_are_never_time(tmp_path: Path) -> None:
    trace = body().span("nccl:all_reduce", 5, 8, tid=1)
    for category in ("gpu_user_annotation", "user_annotation"):
        trace.add(category, "nccl:all_reduce", 30, 95, 20, stream=20)
    for name in ("Stream Wait Event", "Context Sync", "Event Sync"):
        trace.add("cuda_sync", name, 50, 100, 20, stream=20, device=0, correlation=2)
    trace.add("overhead", "CUPTI Activity Buffer Request", 90, 99, 3)
    trace.add("python_function", "nccl_allreduce.py(3): all_reduce", 0, 100)
    trace.add("Trace", "PyTorch Profiler (0)", 0, 200, 0)
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert is_body(rank.steps[0])
    assert codes(rank) == {}


def test_kernels_that_start_before_their_launch(tmp_path: Path) -> None:
    """Clocks of host and device drift: such a kernel counts as launched when it started, and no time turns negative."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    trace.kernel("gemm", 10, 50, correlation=1, launch=12).kernel("gemm", 60, 90, correlation=2, launch=55)
    row = row_of(trace.write(tmp_path / "rank0.json"))
    assert (row.compute_ns, row.host_other_ns) == (70 * US, 30 * US)
    assert (row.not_launched_ns, row.queued_ns) == (15 * US, 5 * US)  # [0,10) and [50,55); [55,60)


def test_lost_device_records(tmp_path: Path) -> None:
    """A step whose launches left no record is left out; some lost in a step are not noticed as time, nor invented."""
    trace = body().step(2, 100, 200).step(3, 200, 300)
    trace.add("cuda_runtime", "cudaLaunchKernel", 110, 111, correlation=9)
    trace.kernel("gemm", 210, 250, correlation=10, launch=205)
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert [row.step for row in rank.steps] == [1, 3]
    assert codes(rank) == {"no_device_records": 1}
    assert rank.steps[1].window_ns == 100 * US


def test_doubled_records(tmp_path: Path) -> None:
    trace = body()
    trace.events += [dict(event) for event in trace.events if event["cat"] == "kernel"]
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    assert is_body(rank.steps[0])
    assert codes(rank) == {"duplicate_record": 3}


def test_two_devices_in_one_file(tmp_path: Path) -> None:
    """One process drives two devices: what one computes does not hide what the other communicates."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    for device, (compute, communication) in enumerate([((10, 50), (40, 70)), ((20, 90), (50, 95))]):
        for correlation, (name, (start, end), stream) in enumerate([("gemm", compute, 7), (NCCL, communication, 20)]):
            ids = {"device": device, "stream": stream, "correlation": 10 * device + correlation + 1}
            trace.add("kernel", name, start, end, stream, **ids)
            trace.add("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=ids["correlation"])
    trace.add("gpu_memcpy", "Memcpy DtoD", 5, 8, 7, device=2, stream=7, correlation=99)
    ranks = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks
    assert [(rank.rank, rank.device_index) for rank in ranks] == [(0, 1), (0, 0)]
    assert [(rank.steps[0].compute_ns, rank.steps[0].attributed_ns) for rank in ranks] == [
        (70 * US, {Kind.ALL_REDUCE: 5 * US}),
        (40 * US, {Kind.ALL_REDUCE: 20 * US}),
    ]
    assert codes(ranks[0]) == {"several_devices": 2, "device_without_kernels": 1}


def test_cpu_trace_of_one_thread_without_workers(tmp_path: Path) -> None:
    """An unfinished wait and a control character in an operator's name, on gloo."""
    trace = HandMade(0, 2).step(1, 0, 100).op("aten::mm", 0, 10).op("c10d::allreduce_", 10, 12, **dims(4))
    trace.span("gloo:all_reduce", 12, 40, **dims(4)).op("aten::add\x01", 30, 60)
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::lost", "pid": 10, "tid": 1, "ts": ORIGIN_US + 70})
    rank = rank_of(trace.write(tmp_path / "rank0.json"))
    row = rank.steps[0]
    assert (row.compute_ns, row.attributed_ns) == (40 * US, {Kind.ALL_REDUCE: 20 * US})
    assert codes(rank) == {"no_duration": 1}
