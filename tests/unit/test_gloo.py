"""Calls to spans: in order per pool, across groups, and with what our own runs note beside."""

from pathlib import Path

import pytest
from handmade import HandMade, dims

from shardscope.attribution import gloo
from shardscope.attribution.analysis import analysis_of
from shardscope.attribution.api import attribute_paths
from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import from_pairs
from shardscope.vocabulary import Axis, Evidence, Kind

US = 1000


def call(
    start: int, kind: Kind, size: int, group: tuple[int, ...] | None = (0, 1), name: str = "c10d::x"
) -> Communication:
    return Communication(
        kind, Evidence.OP, start, start + 1, from_pairs([(start, start + 1)]),
        name=name, order=start, group=group, dims=frozenset({size}),
    )  # fmt: skip


def span(thread: int, start: int, end: int, name: str, size: int) -> gloo.Span:
    return gloo.Span(thread, start, end, name, frozenset({size}))


def test_spans_follow_the_order_of_calls_on_two_workers() -> None:
    calls = [call(0, Kind.ALL_REDUCE, 8), call(1, Kind.ALL_REDUCE, 8), call(2, Kind.ALL_REDUCE, 8)]
    spans = [
        span(7, 3, 50, "gloo:all_reduce", 8),
        span(8, 4, 10, "gloo:all_reduce", 8),
        span(8, 10, 20, "gloo:all_reduce", 8),
    ]
    assert gloo.assign(calls, spans) == []
    assert [c.end for c in calls] == [50, 10, 20]


def test_a_span_cannot_start_before_its_call_and_orphans_are_returned() -> None:
    late = call(10, Kind.ALL_GATHER, 8)
    early = span(7, 5, 9, "gloo:all_gather", 8)
    rest = gloo.assign([late], [early, span(7, 12, 15, "gloo:all_gather", 8)])
    assert rest == [early]
    assert late.end == 15


def test_shapes_keep_unequal_calls_apart() -> None:
    calls = [call(0, Kind.REDUCE_SCATTER, 100), call(1, Kind.ALL_REDUCE, 8)]
    gloo.assign(calls, [span(7, 2, 5, "gloo:all_reduce", 8), span(8, 3, 9, "gloo:all_reduce", 100)])
    assert [c.end for c in calls] == [9, 5]


def test_each_group_has_its_own_pool() -> None:
    """Both groups all-reduce 8 elements; the tensor group's spans lie on thread 7, the data group's on 9.

    Taken together in order, the second tensor call would get the data group's span.
    """
    tensor, data = (0, 1), (0, 2)
    calls = [
        call(0, Kind.ALL_REDUCE, 8, tensor),
        call(2, Kind.ALL_REDUCE, 16, tensor),
        call(3, Kind.ALL_REDUCE, 8, data),
    ]
    calls.append(call(20, Kind.ALL_REDUCE, 8, tensor))
    spans = [
        span(7, 1, 2, "gloo:all_reduce", 8), span(7, 3, 15, "gloo:all_reduce", 16),
        span(9, 30, 40, "gloo:all_reduce", 8), span(7, 21, 25, "gloo:all_reduce", 8),
    ]  # fmt: skip
    assert gloo.assign(calls, spans) == []
    assert [c.end for c in calls] == [2, 15, 40, 25]


def test_monitored_barrier_is_no_send(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 50)
    trace.op("c10d::monitored_barrier_", 5, 20).span("gloo:recv", 6, 15, tid=1).span("gloo:send", 15, 19, tid=1)
    trace.op("c10d::barrier", 30, 31).span("gloo:barrier", 31, 40)
    row = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0].steps[0]
    assert row.busy_ns == {Kind.OTHER: 25 * US}


def test_wait_tensor_takes_the_kind_of_what_it_waits_for(tmp_path: Path) -> None:
    """Two collectives in flight, waited for in the other order: shapes tell."""
    trace = HandMade().step(1, 0, 100)
    trace.op("_c10d_functional::all_reduce", 0, 4, **dims(5)).op("c10d::allreduce_", 1, 3, **{"Input Dims": [[[5]]]})
    trace.op("_c10d_functional::all_gather_into_tensor", 4, 8, **dims(7))
    trace.op("c10d::allgather_into_tensor_coalesced_", 5, 7, **{"Input Dims": [[[14]], [[7]]]})
    trace.op("_c10d_functional::wait_tensor", 20, 50, **dims(14)).op("_c10d_functional::wait_tensor", 60, 70, **dims(5))
    row = attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0].steps[0]
    assert row.busy_ns == {Kind.ALL_GATHER: 34 * US, Kind.ALL_REDUCE: 14 * US}


def test_groups_of_foreign_cpu_traces_stay_unknown_where_order_cannot_tell(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    ]
    trace = HandMade(0, 4, groups=groups).step(1, 0, 50)
    trace.op("c10d::allreduce_", 0, 1, **dims(4)).span("gloo:all_reduce", 1, 9, **dims(4))
    result = attribute_paths([trace.write(tmp_path / "rank0.json")])
    (call_seen,) = result.ranks[0].steps[0].calls
    assert (call_seen.kind, call_seen.axis, call_seen.group) == (Kind.ALL_REDUCE, Axis.UNKNOWN, None)
    assert call_seen.bytes == 16


def pair_traces(folder: Path) -> None:
    """Rank 0 sends at 10 and waits for it at 60; rank 1 posts its receive at 30, idle, gets the message at 50."""
    sender, receiver = HandMade(0).step(1, 0, 100), HandMade(1).step(1, 0, 100)
    sender.op("c10d::send", 8, 12, **{"Concrete Inputs": ["", "", "1", "0"], "Input Dims": [[[8]], [], [], []]})
    sender.span("gloo:send", 10, 80, tid=1, **dims(8)).op("aten::mm", 15, 60)
    receiver.op("aten::mm", 0, 28)
    receiver.op("c10d::recv_", 28, 31, **{"Concrete Inputs": ["", "", "0", "0"], "Input Dims": [[[8]], [], [], []]})
    receiver.span("gloo:recv", 30, 50, tid=1, **dims(8)).op("aten::mm", 50, 70)
    sender.write(folder / "rank0.json")
    receiver.write(folder / "rank1.json")


def test_open_send_spans_are_neither_busy_nor_overlapped_while_pending(tmp_path: Path) -> None:
    pair_traces(tmp_path)
    result = attribute_paths([tmp_path])
    sender, receiver = (item for view in analysis_of(result).views.values() for item in view.communications)
    origin = result.ranks[0].steps[0].start_ns
    # Both posted at 30, the earlier end is 50: the pair transfers over [30, 50) on both ranks.
    assert (sender.transfers - origin).tolist() == [[8 * US, 12 * US], [30 * US, 50 * US]]
    # The send waits only in the idle gap that its end closes, [60, 80); pending under the operator is nothing.
    assert (sender.waits - origin).tolist() == [[60 * US, 80 * US]]
    assert (receiver.transfers - origin).tolist() == [[28 * US, 50 * US]]
    assert receiver.waits.tolist() == []
    row = result.ranks[0].steps[0]
    assert row.busy_ns == {Kind.SEND_RECEIVE: 44 * US}
    assert row.overlapped_ns == {Kind.SEND_RECEIVE: 20 * US}
    (pair,) = result.collectives
    assert (pair.group, pair.transfer_ns, pair.exact, pair.bytes) == ((0, 1), 20 * US, False, 32)


def test_without_the_peer_a_bubble_is_not_measurable(tmp_path: Path) -> None:
    pair_traces(tmp_path)
    (tmp_path / "rank1.json").unlink()
    result = attribute_paths([tmp_path])
    row = result.ranks[0].steps[0]
    assert row.bubble_ns is None
    assert row.wait_ns is None
    assert row.busy_ns == {Kind.SEND_RECEIVE: 24 * US}  # the call and the idle gap its span closes
    (pipeline,) = result.pipelines
    assert pipeline.measured_fraction is None
    assert pipeline.reason == "traces of stages are missing: rank 1"


@pytest.mark.parametrize("name", ["gloo:send", "gloo:recv"])
def test_send_spans_do_not_make_their_thread_a_worker(tmp_path: Path, name: str) -> None:
    trace = HandMade().step(1, 0, 20).op("aten::mm", 0, 15).span(name, 2, 18, tid=1)
    assert attribute_paths([trace.write(tmp_path / "rank0.json")]).ranks[0].steps[0].compute_ns == 15 * US
