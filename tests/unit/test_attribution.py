"""From traces to the result: kinds, groups, steps on devices, matching, and the tables."""

import csv
import json
from pathlib import Path

import msgspec
import pytest
from handmade import HandMade, dims

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.groups import parse_ranks
from shardscope.attribution.kinds import Patterns, axis_of_group, kind_of_operation
from shardscope.attribution.result import Attribution, load_attribution
from shardscope.attribution.tables import as_json, write_tables
from shardscope.errors import ConfigError, ResultError
from shardscope.vocabulary import Axis, Evidence, Kind

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d::_reduce_scatter_base_", Kind.REDUCE_SCATTER),
        ("_allgather_base", Kind.ALL_GATHER),
        ("nccl:all_to_allv", Kind.ALL_TO_ALL),
        ("c10d::alltoall_base_", Kind.ALL_TO_ALL),
        ("allreduce_coalesced", Kind.ALL_REDUCE),
        ("nccl:send 0->1", Kind.SEND_RECEIVE),
        ("nccl:recv 0<-1", Kind.SEND_RECEIVE),
        ("c10d::recv_any_source_", Kind.SEND_RECEIVE),
        ("_broadcast_oop", Kind.BROADCAST),
        ("_reduce_oop", Kind.OTHER),
        ("c10d::monitored_barrier_", Kind.OTHER),
        ("nccl:coalesced", None),
        ("wait", None),
    ],
)
def test_operations_state_their_kind(name: str, kind: Kind | None) -> None:
    assert kind_of_operation(name) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", Kind.UNKNOWN),
        ("void rcclGenericKernel<1, false>(x)", Kind.UNKNOWN),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Kind.SEND_RECEIVE),
        ("void at::native::reduce_kernel<512, 1>(float)", None),
        ("triton_red_fused_all_reduce_like_mean_0", None),
        ("void deep_ep::internode::dispatch<8>(int)", Kind.ALL_TO_ALL),
        ("hcom_allReduce_", Kind.ALL_REDUCE),
        ("oneccl_allgatherv_large", Kind.ALL_GATHER),
    ],
)
def test_kernel_names(name: str, kind: Kind | None) -> None:
    assert Patterns().kind(name) is kind


def test_users_extend_the_patterns(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("[[pattern]]\nmatch = '^my_fast_gather'\nkind = \"all_gather\"\n")
    trace = HandMade(0, 1, "nccl").step(1, 0, 20).kernel("my_fast_gather_v2", 0, 10)
    path = trace.write(tmp_path / "rank0.json")
    assert attribute_paths([path]).ranks[0].steps[0].compute_ns == 10 * US
    extended = attribute_paths([path], patterns=file).ranks[0]
    assert extended.steps[0].attributed_ns == {Kind.ALL_GATHER: 10 * US}
    assert extended.evidence_fraction[Evidence.NAME] == 1


@pytest.mark.parametrize(
    "text", ["[[pattern]]\nmatch = '('\nkind = 'other'", "[[pattern]]\nmatch = 'x'", "pattern = 3", "="]
)
def test_bad_pattern_files_are_one_clear_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        Patterns(file)


@pytest.mark.parametrize(
    ("label", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", Axis.TENSOR),
        ("DATA_PARALLEL_GROUP_WITH_CP", Axis.DATA),
        ("PIPELINE_MODEL_PARALLEL_GROUP", Axis.PIPELINE),
        ("CONTEXT_PARALLEL_GROUP", Axis.SEQUENCE),
        ("EXPERT_MODEL_PARALLEL_GROUP", Axis.EXPERT),
        ("EXPERT_DATA_PARALLEL_GROUP", Axis.DATA),
        ("mesh_tp", Axis.TENSOR),
        ("mesh_dp_shard", Axis.DATA),
        ("mesh_fsdp", Axis.DATA),
        ("ep", Axis.EXPERT),
        ("default_pg", Axis.UNKNOWN),
        ("undefined", Axis.UNKNOWN),
        ("steps", Axis.UNKNOWN),
    ],
)
def test_axes_from_names(label: str, axis: Axis) -> None:
    assert axis_of_group(label) is axis


@pytest.mark.parametrize(
    ("value", "ranks"),
    [("[0, 2, 4]", (0, 2, 4)), ([3, 1], (1, 3)), ("[0, 1, ..., 63]", None), ("", None), (None, None), (["x"], None)],
)
def test_rank_lists(value: object, ranks: tuple[int, ...] | None) -> None:
    assert parse_ranks(value) == ranks
    assert parse_ranks(msgspec.Raw(json.dumps(value).encode())) == ranks


def test_metadata_beats_the_operation_and_the_operation_beats_the_name(tmp_path: Path) -> None:
    trace = HandMade(0, 2, "nccl").step(1, 0, 100)
    trace.kernel(NCCL, 0, 10, 20, correlation=1, launch=1, **{"Collective name": "_allgather_base"})
    trace.op("record_param_comms", 20, 30, **{"Collective name": "reduce_scatter"})
    trace.kernel(NCCL, 25, 35, 20, correlation=2, launch=22)
    trace.kernel(NCCL, 50, 60, 20, correlation=3, launch=45)
    trace.kernel("ncclDevKernel_Generic_4", 70, 80, 20, correlation=4, launch=65)
    rank = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0]
    assert rank.steps[0].busy_ns == dict.fromkeys(
        (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.UNKNOWN), 10 * US
    )
    assert rank.evidence_fraction == dict.fromkeys(Evidence, 0.25)


def test_a_step_ends_when_the_compute_it_launched_ends(tmp_path: Path) -> None:
    """Step 1's all-reduce runs on until compute of step 2 starts; device work that predates the trace is cut off."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100).step(2, 100, 200)
    trace.kernel("gemm", 5, 20, correlation=1, launch=-5)
    trace.kernel("gemm", 30, 150, correlation=2, launch=10)
    trace.kernel(NCCL, 140, 190, 20, correlation=3, launch=20)
    trace.kernel("gemm", 180, 260, correlation=4, launch=110)
    first, second = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0].steps
    origin = first.start_ns - 20 * US
    assert (first.start_ns, first.window_ns) == (origin + 20 * US, 160 * US)
    assert (second.start_ns, second.window_ns) == (origin + 180 * US, 80 * US)
    assert (first.compute_ns, first.attributed_ns) == (120 * US, {Kind.ALL_REDUCE: 30 * US})
    assert (second.compute_ns, second.busy_ns) == (80 * US, {Kind.ALL_REDUCE: 10 * US})
    assert first.late_device_ns == 80 * US
    assert second.foreign_device_ns == 10 * US


def test_a_step_whose_device_records_are_lost_is_left_out_and_named(tmp_path: Path) -> None:
    trace = HandMade(0, 1, "nccl").step(1, 0, 100).step(2, 100, 200)
    trace.kernel("gemm", 10, 50, correlation=1, launch=5)
    trace.add("cuda_runtime", "cudaLaunchKernel", 110, 111, correlation=9)
    rank = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0]
    assert [row.step for row in rank.steps] == [1]
    assert any(warning.code == "no_device_records" and "step 2" in warning.detail for warning in rank.warnings)


def test_kernels_that_start_a_little_early_are_not_clipped_but_those_that_outlast_their_successor_are(
    tmp_path: Path,
) -> None:
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    trace.kernel("a", 0, 30).kernel("b", 25, 50).kernel("c", 60, 99).kernel("d", 70, 80)
    rank = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0]
    assert rank.steps[0].compute_ns == (50 + 20) * US
    assert [(warning.code, warning.count) for warning in rank.warnings] == [("duration_overflow", 1)]


def nccl_run(folder: Path, arrivals: list[float], *, end: float = 90, skew: float = 0, **args: object) -> Attribution:
    for rank, arrival in enumerate(arrivals):
        shift = skew * rank
        trace = HandMade(rank, len(arrivals), "nccl").step(1, shift, 100 + shift)
        given = {
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "In msg nelems": 1000,
            "dtype": "Float",
            **args,
        }
        trace.kernel(NCCL, arrival + shift, end + shift, 20, **given).kernel("gemm", shift, arrival + shift)
        trace.write(folder / f"rank{rank}.json")
    return attribute_paths([folder])


@pytest.mark.parametrize("args", [{"Seq": 5}, {"Comms Id": 77}, {}])
def test_matching_by_id_by_sequence_and_by_order(tmp_path: Path, args: dict[str, object]) -> None:
    (collective,) = nccl_run(tmp_path, [10, 40, 30], **args).collectives
    assert collective.matched_by == {"Seq": "sequence", "Comms Id": "comms id"}.get(next(iter(args), ""), "order")
    assert collective.wait_ns == {"0": 30 * US, "1": 0, "2": 10 * US}
    assert (collective.transfer_ns, collective.last_rank, collective.exact) == (50 * US, 1, True)
    assert collective.algbw_bytes_per_s == pytest.approx(4000 / 50e-6)
    assert collective.busbw_bytes_per_s == pytest.approx(4000 / 50e-6 * 4 / 3)


def test_bandwidth_needs_a_time_well_above_the_clocks(tmp_path: Path) -> None:
    (collective,) = nccl_run(tmp_path, [87, 86.5]).collectives
    assert collective.transfer_ns == 3 * US
    assert collective.busbw_bytes_per_s is None


def test_clocks_are_aligned_by_ends(tmp_path: Path) -> None:
    result = nccl_run(tmp_path, [10, 40], skew=5000)
    assert result.clock.offset_ns == {"1": 5_000_000}
    assert result.collectives[0].wait_ns == {"0": 30 * US, "1": 0}


def test_a_synchronising_collective_that_ends_before_the_last_arrives_is_not_matched(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = HandMade(rank, 2, "nccl").step(1, 0, 100)
        for sequence, (start, end) in enumerate([(0, 10), (20, 30), (40, 50), (60, 65) if rank == 0 else (80, 90)]):
            trace.kernel(
                NCCL, start, end, 20, **{"Collective name": "allreduce", "Process Group Name": "0", "Seq": sequence}
            )
        trace.write(tmp_path / f"rank{rank}.json")
    result = attribute_paths([tmp_path])
    assert len(result.collectives) == 3
    assert any(warning.code == "unmatched" for rank in result.ranks for warning in rank.warnings)
    assert all(rank.steps[0].bounds for rank in result.ranks)


def test_ranks_without_a_common_step_have_no_summary(tmp_path: Path) -> None:
    HandMade(0).step(1, 0, 10).op("aten::mm", 0, 5).write(tmp_path / "rank0.json")
    HandMade(1).step(2, 0, 10).op("aten::mm", 0, 5).write(tmp_path / "rank1.json")
    result = attribute_paths([tmp_path])
    assert result.summary_step is None
    assert [[row.step for row in rank.steps] for rank in result.ranks] == [[1], [2]]


def gloo_pair(folder: Path) -> Attribution:
    for rank, ready in ((0, 10), (1, 30)):
        trace = HandMade(rank).step(1, 0, 60).op("aten::mm", 0, ready)
        trace.op("c10d::allreduce_", ready, ready + 1, **dims(4)).span("gloo:all_reduce", ready + 1, 47, **dims(4))
        trace.write(folder / f"rank{rank}.json")
    return attribute_paths([folder])


def test_tables_are_whole_and_agree(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    result = gloo_pair(tmp_path / "traces")
    folder = tmp_path / "tables"
    write_tables(result, folder)
    write_tables(result, folder)  # a second time replaces the first
    assert sorted(path.name for path in folder.iterdir()) == [
        "attribution.json", "collectives.csv", "intervals.csv", "ledger.csv",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables", "traces"]
    assert as_json(load_attribution(folder / "attribution.json")) == as_json(result)
    ledger, intervals, collectives = (
        list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))
        for name in ("ledger", "intervals", "collectives")
    )
    for line, rank in zip(ledger, result.ranks, strict=True):
        row = rank.steps[0]
        mine = [piece for piece in intervals if piece["rank"] == str(rank.rank)]
        assert sum(int(piece["end_ns"]) - int(piece["start_ns"]) for piece in mine) == row.window_ns
        assert int(line["compute_ns"]) == row.compute_ns
        assert int(line["attributed_all_reduce_ns"]) == row.attributed_ns[Kind.ALL_REDUCE]
        assert line["bubble_ns"] == ""
    assert len(collectives) == 2


def test_a_loaded_result_has_no_intervals_to_write(tmp_path: Path) -> None:
    result = msgspec.json.decode(as_json(gloo_pair(tmp_path)), type=Attribution)
    with pytest.raises(ResultError, match="loaded from a file"):
        write_tables(result, tmp_path / "tables")
    assert not (tmp_path / "tables").exists()


def test_json_has_the_documented_shape(tmp_path: Path) -> None:
    document = json.loads(as_json(gloo_pair(tmp_path)))
    assert document["schema"] == 1
    assert set(document) == {
        "schema", "summary_step", "ranks", "collectives", "pipelines", "clock", "missing_ranks", "skipped_files",
        "stragglers",
    }  # fmt: skip
    row = document["ranks"][0]["steps"][0]
    parts = row["compute_ns"] + sum(row["attributed_ns"].values()) + row["copies_exposed_ns"] + row["host_other_ns"]
    assert parts + (row["bubble_ns"] or 0) == row["window_ns"]
    assert document["collectives"][0]["arrival_ns"].keys() == {"0", "1"}


def cut(path: Path, at: str) -> Path:
    """Cut a file in the middle of the last event with this name."""
    text = path.read_text()
    path.write_text(text[: text.rindex(f'"{at}"') + 5])
    return path


def test_salvage_keeps_only_steps_whose_device_records_are_all_there(tmp_path: Path) -> None:
    """Device records are written last: the cut takes those of step 2 though its marks and step 3's are there."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100).step(2, 100, 200).step(3, 200, 300)
    for number in range(3):
        trace.add("cuda_runtime", "cudaLaunchKernel", 100 * number + 5, 100 * number + 6, correlation=number + 1)
    trace.kernel("first", 10, 90, correlation=1).kernel("second", 110, 190, correlation=2)
    rank = attribute_paths([cut(trace.write(tmp_path / "rank0.json"), "second")], salvage=True).ranks[0]
    assert [row.step for row in rank.steps] == [1]
    assert [warning.detail.split(" ")[1].strip(",") for warning in rank.warnings] == ["3", "2"]


def test_salvage_keeps_only_steps_whose_gloo_spans_are_all_there(tmp_path: Path) -> None:
    trace = HandMade(0, 2)
    for number in range(3):
        trace.step(number, 100 * number, 100 * number + 100)
        trace.op("c10d::allreduce_", 100 * number + 10, 100 * number + 12, **dims(4))
    trace.span("gloo:all_reduce", 12, 30, **dims(4)).span("gloo:all_reduce", 112, 130, **dims(4))
    trace.span("gloo:lost", 212, 230)
    rank = attribute_paths([cut(trace.write(tmp_path / "rank0.json"), "gloo:lost")], salvage=True).ranks[0]
    assert [row.step for row in rank.steps] == [0, 1]
    assert all(row.attributed_ns == {Kind.ALL_REDUCE: 20 * US} for row in rank.steps)
    trace.write(tmp_path / "rank0.json")
    rank = attribute_paths([cut(tmp_path / "rank0.json", "gloo:all_reduce")], salvage=True).ranks[0]
    assert [row.step for row in rank.steps] == [0]
