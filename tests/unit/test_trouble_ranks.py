"""Trouble between ranks: clocks, step ranges, worlds, file names, nameless groups. Answers by hand (times in µs)."""

from pathlib import Path

import pytest
from handmade import HandMade

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import Attribution
from shardscope.errors import EmptyTrace, RankError
from shardscope.trace import parallel
from shardscope.trace.find import rank_of_name
from shardscope.vocabulary import Axis, Kind

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def collective(trace: HandMade, start: float, end: float, stream: int = 20, **args: object) -> HandMade:
    return trace.kernel(NCCL, start, end, stream, **{"Collective name": "allreduce", "Process Group Name": "0"} | args)


def codes(result: Attribution, rank: int) -> set[str]:
    return {warning.code for owner in result.ranks if owner.rank == rank for warning in owner.warnings}


def test_different_base_times(tmp_path: Path) -> None:
    """Times count from each file's own base: rank 1's is 3 ms later, and its times are that much smaller."""
    for rank, arrival in ((0, 20), (1, 60)):
        trace = collective(HandMade(rank, 2, "nccl").step(1, 0, 100), arrival, 90)
        for event in trace.events:
            event["ts"] -= 3000 * rank
        trace.top["baseTimeNanoseconds"] += 3_000_000 * rank
        trace.write(tmp_path / f"rank{rank}.json")
    result = attribute_paths([tmp_path])
    assert not result.clock.applied
    assert result.collectives[0].wait_ns == {"0": 40 * US, "1": 0}
    assert result.collectives[0].transfer_ns == 30 * US


def test_step_ranges_that_differ_between_ranks(tmp_path: Path) -> None:
    """Ranks 0 and 1 recorded steps 1 and 2, rank 2 only 2 and 3: in step 2 all is exact, elsewhere waits are bounds."""
    for rank, steps in ((0, (1, 2)), (1, (1, 2)), (2, (2, 3))):
        trace = HandMade(rank, 3, "nccl")
        for number in steps:
            start = 100 * number
            trace.step(number, start, start + 100)
            collective(trace, start + 10 * (rank + 1), start + 80, Seq=number, correlation=number, launch=start + 1)
        trace.write(tmp_path / f"rank{rank}.json")
    result = attribute_paths([tmp_path])
    assert result.summary_step == 2
    by_step = {item.step: item for item in result.collectives}
    assert set(by_step) == {1, 2}
    assert (by_step[2].wait_ns, by_step[2].exact) == ({"0": 20 * US, "1": 10 * US, "2": 0}, True)
    assert (by_step[1].wait_ns, by_step[1].exact) == ({"0": 10 * US, "1": 0}, False)
    bounds = {(rank.rank, row.step): row.bounds for rank in result.ranks for row in rank.steps}
    assert [key for key, bound in bounds.items() if not bound and key[1] == 1] == []
    assert not any(bound for key, bound in bounds.items() if key[1] == 2)
    assert [codes(result, rank) for rank in range(3)] == [{"step_range"}] * 3


def test_ranks_of_different_worlds_are_not_compared(tmp_path: Path) -> None:
    """Ranks 0 and 1 of a job of two, rank 2 of a job of four: the first two are compared, the third stands alone."""
    for rank, world, arrival in ((0, 2, 20), (1, 2, 50), (2, 4, 70)):
        collective(HandMade(rank, world, "nccl").step(1, 0, 100), arrival, 90, Seq=1).write(tmp_path / f"t{rank}.json")
    result = attribute_paths([tmp_path])
    assert [item.wait_ns for item in result.collectives] == [{"0": 30 * US, "1": 0}]
    assert all("several_worlds" in codes(result, rank) for rank in range(3))
    assert result.ranks[2].steps[0].wait_ns is None


def test_one_rank_of_two_worlds_is_refused_by_name(tmp_path: Path) -> None:
    for name, world, step in (("a", 2, 1), ("b", 4, 2)):
        HandMade(0, world).step(step, 100 * step, 100 * step + 50).write(tmp_path / f"{name}.json")
    with pytest.raises(RankError, match=r"a\.json and b\.json both claim rank 0, in worlds of 2 and 4 ranks"):
        attribute_paths([tmp_path])


def test_local_rank_file_names_on_several_nodes(tmp_path: Path) -> None:
    """Each node names its files from 0. What the files say inside decides; without that they are refused by name."""
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        for local in (0, 1):
            trace = collective(HandMade(2 * node + local, 4, "nccl").step(1, 0, 100), 10 * (2 * node + local), 90)
            trace.write(tmp_path / f"node{node}" / f"rank{local}.json")
    folders = [tmp_path / "node0", tmp_path / "node1"]
    for paths in (folders, [tmp_path]):  # a folder without traces gives those of its folders
        result = attribute_paths(paths)
        assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3]
        assert result.collectives[0].wait_ns == {"0": 30 * US, "1": 20 * US, "2": 10 * US, "3": 0}
    for path in tmp_path.glob("*/rank*.json"):
        HandMade(None).step(1, 0, 100).op("aten::mm", 0, 5).write(path)
    with pytest.raises(RankError, match=r"node0/rank0\.json and .*node1/rank0\.json both claim rank 0 .*each node"):
        attribute_paths(folders)
    given = {path: rank for rank, path in enumerate(sorted(tmp_path.glob("*/rank*.json")))}
    assert [rank.rank for rank in attribute_paths(folders, ranks=given).ranks] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("profile_3.json", 3),
        ("1741988781.12-TP-5.trace.json.gz", 5),
        ("rank-11.json.gz", 11),
        ("profiler_out.json", None),
        ("node3_trace.json", None),
    ],
)
def test_file_names_of_more_producers(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_clocks_too_far_apart_for_one_job_are_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = collective(HandMade(rank, 2, "nccl").step(1, 0, 100), 20, 90)
        trace.top["baseTimeNanoseconds"] += 7_200_000_000_000 * rank
        trace.write(tmp_path / f"rank{rank}.json")
    result = attribute_paths([tmp_path])
    assert codes(result, 1) == {"far_clock"}
    assert result.collectives[0].transfer_ns == 70 * US


def grid_rank(rank: int, *, named: bool) -> HandMade:
    """A job of 8 in Megatron-LM's order: tensor 2 innermost, data 2, pipeline 2 outermost."""
    tensor = [rank // 2 * 2, rank // 2 * 2 + 1]
    data = [rank // 4 * 4 + rank % 2, rank // 4 * 4 + rank % 2 + 2]
    pipeline = [rank % 4, rank % 4 + 4]
    names = ("TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP")
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))}]
    for place, (name, ranks) in enumerate(zip(names, (tensor, data, pipeline), strict=True), start=1):
        label = name if named or place == 1 else "undefined"
        groups.append({"pg_name": str(place), "pg_desc": label, "pg_size": 2, "ranks": ranks})
    return HandMade(rank, 8, "nccl", groups).step(1, 0, 1000)


@pytest.mark.parametrize("named", [True, False])
def test_a_megatron_user_reads_what_each_parallelism_costs(tmp_path: Path, named: bool) -> None:
    """Tensor all-reduce 180 exposed, data reduce-scatter 40, pipeline messages 30 of 1000 µs. Where only the tensor
    group has a name, the others follow from who is in them and what they carry."""
    trace = grid_rank(0, named=named).kernel("gemm", 0, 500)
    for group, kind, start, end in (
        (1, "allreduce", 480, 680),
        (2, "_reduce_scatter_base", 700, 740),
        (3, "send", 750, 780),
    ):
        peers = {"Dst Rank": 4} if kind == "send" else {}
        trace.kernel(
            "ncclDevKernel_Generic",
            start,
            end,
            20,
            **{"Collective name": kind, "Process Group Name": str(group)},
            **peers,
        )
    (rank,) = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks
    assert rank.steps[0].attributed_by_kind_axis_ns == {
        Kind.ALL_REDUCE: {Axis.TENSOR: 180 * US},
        Kind.REDUCE_SCATTER: {Axis.DATA: 40 * US},
        Kind.SEND_RECEIVE: {Axis.PIPELINE: 30 * US},
    }
    assert [warning.code for warning in rank.warnings] == ([] if named else ["axis_inferred"] * 2)


def test_nothing_is_inferred_where_two_readings_are_possible(tmp_path: Path) -> None:
    """Without any named group, a group of every second rank may be data, expert or sequence parallel."""
    groups = [{"pg_name": "7", "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 2]}]
    trace = HandMade(0, 4, "nccl", groups).step(1, 0, 100)
    trace.kernel(NCCL, 10, 30, 20, **{"Collective name": "allreduce", "Process Group Name": "7"})
    (rank,) = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks
    assert rank.steps[0].attributed_by_axis_ns == {Axis.UNKNOWN: 20 * US}


def test_reading_in_parallel_processes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardscope.attribution.tables import as_json

    for rank in range(3):
        trace = HandMade(rank, 3, "nccl").step(1, 0, 100).kernel("gemm", 0, 10)
        groups = {"Process Group Ranks": "[0, 1, 2]", "In msg nelems": 10, "dtype": "Float"}
        collective(trace, 10 * rank, 90, **groups).write(tmp_path / f"rank{rank}.json")
    here = as_json(attribute_paths([tmp_path]))
    monkeypatch.setattr(parallel, "_WORTH_BYTES", 0)
    monkeypatch.setattr(parallel, "_processors", lambda: 2)
    assert len(parallel._groups(list(tmp_path.iterdir()))) == 2
    assert as_json(attribute_paths([tmp_path])) == here
    (tmp_path / "rank1.json").write_text("{")
    with pytest.raises(EmptyTrace, match=r"rank1\.json: no timed events"):
        attribute_paths([tmp_path])


def test_a_reading_process_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [HandMade(rank).step(1, 0, 9).write(tmp_path / f"rank{rank}.json") for rank in (0, 1)]
    monkeypatch.setattr(parallel, "_WORTH_BYTES", 0)
    monkeypatch.setattr(parallel, "_processors", lambda: 2)
    monkeypatch.setattr(parallel.sys, "executable", "/bin/true")
    outcomes = parallel.read_each(paths)
    assert all("ended early" in str(outcome) for outcome in outcomes)


def test_an_impossible_number_of_ranks_is_named_and_not_counted_to(tmp_path: Path) -> None:
    trace = collective(HandMade(0, 2, "nccl").step(1, 0, 100), 20, 90)
    trace.top["distributedInfo"]["world_size"] = 10**18
    trace.write(tmp_path / "rank0.json")
    result = attribute_paths([tmp_path])
    assert result.missing_ranks == []
    assert result.ranks[0].world_size is None
    assert "implausible_world_size" in codes(result, 0)
