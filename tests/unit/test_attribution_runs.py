"""Our own runs: what run.json says about groups, peers and stages goes into the attribution."""

from pathlib import Path

import msgspec
import pytest
from handmade import HandMade, dims

from shardscope.attribution.api import attribute_paths, attribute_run
from shardscope.errors import ResultError
from shardscope.measure.record import (
    CommunicationCall,
    Plan,
    RunRecord,
    StrategyRecord,
    TraceFile,
)
from shardscope.vocabulary import Axis, Kind, Status
from shardscope.workload.spec import WorkloadSpec

US = 1000


def call(kind: Kind, axis: Axis, group: tuple[int, ...], size: int, **more: int) -> CommunicationCall:
    return CommunicationCall(step=1, kind=kind, axis=axis, group=group, bytes=size, op="c10d::x", **more)


def write_run(folder: Path, calls: dict[str, tuple[CommunicationCall, ...]], **more: object) -> None:
    """run.json beside two traces in which every rank reduces in two groups that the traces do not tell apart."""
    groups = [{"pg_name": str(i), "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 1]} for i in (0, 1)]
    groups[1]["ranks"] = [0, 2]
    for rank in (0, 1):
        trace = HandMade(rank, 4, groups=groups).step(1, 0, 100).op("aten::mm", 0, 10)
        trace.op("c10d::allreduce_", 10, 12, **dims(4)).span("gloo:all_reduce", 12, 40, **dims(4))
        trace.op("c10d::allreduce_", 40, 42, **dims(4)).span("gloo:all_reduce", 42, 70, tid=9, **dims(4))
        trace.write(folder / f"rank{rank}.json")
    spec = WorkloadSpec(
        name="w", layers=1, hidden=8, heads=1, sequence_length=8, global_batch=2, micro_batches=1,
    )  # fmt: skip
    fields: dict[str, object] = {
        "schema": 1, "status": Status.OK, "reason": None, "started_at": "", "finished_at": "", "workload": spec,
        "strategy": StrategyRecord(name="s", display_name="S", shards=(), parameters={}), "baseline": "ddp",
        "plan": Plan(parameter_count=1, state=(), collectives=()),
        "traces": tuple(TraceFile(rank=rank, file=f"rank{rank}.json", bytes=1) for rank in (0, 1)),
        "communication": calls, **more,
    }  # fmt: skip
    (folder / "run.json").write_bytes(msgspec.json.encode(RunRecord(**fields)))  # type: ignore[arg-type]


def both(*calls: CommunicationCall) -> dict[str, tuple[CommunicationCall, ...]]:
    return {"0": calls, "1": calls}


def test_the_sidecar_tells_groups_axes_and_bytes(tmp_path: Path) -> None:
    write_run(
        tmp_path, both(call(Kind.ALL_REDUCE, Axis.TENSOR, (0, 1), 16), call(Kind.ALL_REDUCE, Axis.DATA, (0, 2), 64))
    )
    result = attribute_run(tmp_path)
    row = result.ranks[0].steps[0]
    assert row.attributed_by_axis_ns == {Axis.TENSOR: 30 * US, Axis.DATA: 30 * US}
    assert [(c.axis, c.group, c.count, c.bytes) for c in row.calls] == [
        (Axis.DATA, (0, 2), 1, 64),
        (Axis.TENSOR, (0, 1), 1, 16),
    ]
    # The tensor group is here whole; of the data group one rank of two is.
    assert [(c.group, c.axis) for c in result.collectives] == [((0, 1), Axis.TENSOR)]
    assert row.bounds
    assert [group.ranks for group in result.ranks[0].groups] == [(0, 1), (0, 2)]
    assert result.missing_ranks == []  # the run lists two traces, and both are here


def test_without_the_sidecar_the_same_traces_say_less(tmp_path: Path) -> None:
    write_run(tmp_path, both())
    (tmp_path / "run.json").unlink()
    result = attribute_paths([tmp_path])
    assert result.ranks[0].steps[0].attributed_by_axis_ns == {Axis.UNKNOWN: 60 * US}
    assert result.collectives == []
    assert result.missing_ranks == [2, 3]


def test_a_sidecar_that_disagrees_with_the_trace_is_not_used(tmp_path: Path) -> None:
    write_run(
        tmp_path, both(call(Kind.ALL_REDUCE, Axis.TENSOR, (0, 1), 16), call(Kind.ALL_GATHER, Axis.DATA, (0, 2), 64))
    )
    rank = attribute_run(tmp_path).ranks[0]
    assert [warning.code for warning in rank.warnings] == ["sidecar_mismatch"]
    assert {c.group for c in rank.steps[0].calls} == {None}


def test_runs_that_cannot_be_attributed_say_why(tmp_path: Path) -> None:
    write_run(tmp_path, both(), status=Status.FAILED, reason="rank 1 was killed")
    with pytest.raises(ResultError, match="rank 1 was killed"):
        attribute_run(tmp_path)
    write_run(tmp_path, both(), traces=())
    with pytest.raises(ResultError, match="lists no traces"):
        attribute_run(tmp_path)
    write_run(tmp_path, both(), traces=(TraceFile(rank=0, file="../rank0.json", bytes=1),))
    with pytest.raises(ResultError, match="outside its folder"):
        attribute_run(tmp_path)
