"""Ledgers of traces written by hand, with answers worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
from handmade import HandMade, dims
from hypothesis import given
from hypothesis import strategies as st

from shardscope.attribution.analysis import analysis_of
from shardscope.attribution.api import attribute_paths
from shardscope.attribution.intervals import from_pairs
from shardscope.attribution.partition import partition
from shardscope.attribution.result import Attribution, StepRow
from shardscope.attribution.share import Label, States, share
from shardscope.vocabulary import Axis, Evidence, Kind

US = 1000
GEMM = "sm90_xmma_gemm_bf16"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def only_row(trace: HandMade, folder: Path) -> StepRow:
    row = attribute_paths([trace.write(folder / "rank0.json")]).ranks[0].steps[0]
    assert row.total_ns == row.window_ns
    return row


def two_ranks(first: HandMade, second: HandMade, folder: Path) -> Attribution:
    first.write(folder / "rank0.json")
    second.write(folder / "rank1.json")
    result = attribute_paths([folder])
    assert all(row.total_ns == row.window_ns for rank in result.ranks for row in rank.steps)
    return result


def test_async_all_reduce_hides_under_compute(tmp_path: Path) -> None:
    """The call returns at once; its span runs 20–80 on the worker, under the operators [30, 50) and [60, 70)."""
    trace = HandMade().step(1, 0, 100)
    trace.op("aten::mm", 0, 10)
    trace.op("c10d::allreduce_", 10, 12, **dims(64)).span("gloo:all_reduce", 20, 80, **dims(64))
    trace.op("aten::mm", 30, 50).op("aten::mm", 60, 70)
    row = only_row(trace, tmp_path)
    assert row.compute_ns == 40 * US
    assert row.busy_ns == {Kind.ALL_REDUCE: 62 * US}  # the inside of the call and the span
    assert row.overlapped_ns == {Kind.ALL_REDUCE: 30 * US}
    assert row.exposed_ns == row.attributed_ns == {Kind.ALL_REDUCE: 32 * US}
    assert row.host_other_ns == 28 * US


def test_waits_nested_in_operators_are_not_compute(tmp_path: Path) -> None:
    """A custom operator of 50 holds a functional all-gather (10), its wait (20) and 20 of real work."""
    trace = HandMade().step(1, 0, 100)
    trace.op("mylib::gather_and_multiply", 10, 60)
    trace.op("_c10d_functional::all_gather_into_tensor", 10, 20, **dims(8))
    trace.op("c10d::allgather_into_tensor_coalesced_", 12, 18, **{"Input Dims": [[[16]], [[8]]]})
    trace.span("gloo:all_gather", 15, 38, **dims(8))
    trace.op("_c10d_functional::wait_tensor", 20, 40, **dims(16))
    trace.op("aten::mm", 45, 60)
    row = only_row(trace, tmp_path)
    assert row.compute_ns == 20 * US
    assert row.busy_ns == {Kind.ALL_GATHER: 30 * US}  # the wait takes the kind of what it waits for
    assert row.host_other_ns == 50 * US


def test_autograd_entries_and_annotations_are_host_time(tmp_path: Path) -> None:
    """A backward entry of 40 calls one operator of 10; during 15 of the rest a collective is under way."""
    trace = HandMade().step(1, 0, 50)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 0, 40).op("AddmmBackward0", 1, 39)
    trace.op("torch::autograd::AccumulateGrad", 2, 5).op("aten::mm", 10, 20)
    trace.op("c10d::allreduce_", 20, 22, **dims(4)).span("gloo:all_reduce", 22, 35, **dims(4))
    trace.span("DistributedDataParallel.forward", 0, 50, tid=1)
    row = only_row(trace, tmp_path)
    assert row.compute_ns == 10 * US
    assert row.attributed_ns == {Kind.ALL_REDUCE: 15 * US}
    assert row.host_other_ns == 25 * US
    assert row.flags == ["host time 50 % of the step: 100 % of it inside DistributedDataParallel.forward"]


def test_operators_of_gloo_workers_and_of_the_data_loader_are_not_compute(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 100)
    trace.op("c10d::_allgather_base_", 0, 5, **dims(16, 8)).span("gloo:all_gather", 5, 30, **dims(8))
    trace.op("aten::copy_", 20, 29, tid=7)
    trace.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 40, 60, tid=1).op("aten::stack", 45, 55)
    trace.op("aten::mm", 60, 100)
    row = only_row(trace, tmp_path)
    assert row.compute_ns == 40 * US
    assert row.data_loading_ns == 10 * US
    assert row.host_other_ns == 30 * US


def test_compiled_regions_are_compute(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 10).span("## Call CompiledFxGraph fxyz ##", 2, 9, tid=1)
    assert only_row(trace, tmp_path).compute_ns == 7 * US


def test_gloo_runs_reduce_scatter_as_all_reduce(tmp_path: Path) -> None:
    """Only the call tells; the all-reduce beside it stays one."""
    trace = HandMade().step(1, 0, 100)
    trace.op("c10d::_reduce_scatter_base_", 0, 2, **dims(50, 100)).span("gloo:all_reduce", 2, 20, **dims(100))
    trace.op("c10d::allreduce_", 30, 32, **dims(100)).span("gloo:all_reduce", 32, 40, tid=8, **dims(100))
    # A reduce-scatter of lists gives one span per rank.
    trace.op("c10d::reduce_scatter_", 50, 52, **{"Input Dims": [[[10]], [], []]})
    trace.span("gloo:all_reduce", 52, 60, **dims(10)).span("gloo:all_reduce", 55, 70, tid=8, **dims(10))
    result = attribute_paths([trace.write(tmp_path / "rank0.json")])
    row = result.ranks[0].steps[0]
    assert row.busy_ns == {Kind.REDUCE_SCATTER: 40 * US, Kind.ALL_REDUCE: 10 * US}
    assert [(call.kind, call.count) for call in row.calls] == [(Kind.ALL_REDUCE, 1), (Kind.REDUCE_SCATTER, 2)]
    assert result.ranks[0].evidence_fraction[Evidence.OP] == 1


def test_late_rank_shows_as_exposed_wait_of_the_other(tmp_path: Path) -> None:
    """Rank 1 calls 60 later. Rank 0 computes during 20 of that, so 40 of its wait is exposed."""
    early = HandMade(0).step(1, 0, 100).op("c10d::allreduce_", 10, 12, **dims(4))
    early.span("gloo:all_reduce", 12, 80, **dims(4)).op("aten::mm", 20, 40)
    late = HandMade(1).step(1, 0, 100).op("aten::mm", 0, 70)
    late.op("c10d::allreduce_", 70, 72, **dims(4)).span("gloo:all_reduce", 72, 80, **dims(4))
    result = two_ranks(early, late, tmp_path)
    row, other = (rank.steps[0] for rank in result.ranks)
    assert row.wait_ns == {Kind.ALL_REDUCE: 60 * US}
    assert row.exposed_wait_ns == row.attributed_wait_ns == {Kind.ALL_REDUCE: 40 * US}
    assert row.transfer_ns == {Kind.ALL_REDUCE: 10 * US}
    assert other.wait_ns == {}
    (collective,) = result.collectives
    assert collective.last_rank == 1
    assert collective.exposed_wait_ns == {"0": 40 * US, "1": 0}
    assert collective.transfer_ns == 10 * US
    assert collective.exact
    assert collective.bytes == 16


def test_collectives_that_do_not_correspond_stay_unmatched(tmp_path: Path) -> None:
    """Two calls on one rank and one on the other: waiting is a bound (nothing claimed), never guessed."""
    first, second = HandMade(0).step(1, 0, 50), HandMade(1).step(1, 0, 50)
    first.op("c10d::allreduce_", 0, 1, **dims(4)).span("gloo:all_reduce", 1, 10, **dims(4))
    first.op("c10d::allreduce_", 20, 21, **dims(4)).span("gloo:all_reduce", 21, 30, **dims(4))
    second.op("c10d::allreduce_", 0, 1, **dims(4)).span("gloo:all_reduce", 1, 10, **dims(4))
    result = two_ranks(first, second, tmp_path)
    assert result.collectives == []
    assert all(rank.steps[0].wait_ns is None and rank.steps[0].transfer_ns is None for rank in result.ranks)


def test_transferring_kinds_go_before_waiting_ones(tmp_path: Path) -> None:
    """[20, 40): the all-reduce waits while the broadcast transfers; the broadcast takes all of it."""
    first, second = HandMade(0).step(1, 0, 60), HandMade(1).step(1, 0, 60)
    root = {"Concrete Inputs": ["", "", "1", "0"], "Input Dims": [[[8]], [], [], []]}
    for trace, ready in ((first, 10), (second, 50)):
        trace.op("c10d::broadcast_", 0, 1, **root).span("gloo:broadcast", 20, 40, tid=8, **dims(8))
        trace.op("c10d::allreduce_", ready, ready + 1, **dims(4)).span("gloo:all_reduce", ready + 1, 60, **dims(4))
    row = two_ranks(first, second, tmp_path).ranks[0].steps[0]
    assert row.wait_ns == {Kind.ALL_REDUCE: 40 * US}
    assert row.attributed_ns == {Kind.ALL_REDUCE: 30 * US, Kind.BROADCAST: 21 * US}
    assert row.exposed_ns == {Kind.ALL_REDUCE: 50 * US, Kind.BROADCAST: 21 * US}


def test_broadcast_waits_for_its_root_only(tmp_path: Path) -> None:
    first, second = HandMade(0).step(1, 0, 60), HandMade(1).step(1, 0, 60)
    inputs = {"Concrete Inputs": ["", "", "0", "0"], "Input Dims": [[[8]], [], [], []]}
    first.op("c10d::broadcast_", 30, 31, **inputs).span("gloo:broadcast", 31, 33, **dims(8))
    second.op("c10d::broadcast_", 5, 6, **inputs).span("gloo:broadcast", 6, 40, **dims(8))
    result = two_ranks(first, second, tmp_path)
    root, receiver = (rank.steps[0] for rank in result.ranks)
    assert root.wait_ns == {}
    assert receiver.wait_ns == {Kind.BROADCAST: 25 * US}


def test_left_over_nanoseconds_go_in_the_order_of_kinds() -> None:
    exposed = {
        Label(kind, Axis.UNKNOWN, None, ""): States(unknown=from_pairs([(0, 100)]))
        for kind in (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_GATHER)
    }
    shares = share(exposed)
    assert [label.kind for label in shares.labels] == [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER]
    assert shares.ns.tolist() == [[34], [33], [33]]


pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.sampled_from(Axis), pairs, pairs, pairs), max_size=5))
def test_every_exposed_instant_is_booked_exactly_once(entries: list[tuple[Kind, Axis, list, list, list]]) -> None:
    """Instant by instant: who shares follows the rule, and the sum is the length of the union."""
    exposed: dict[Label, States] = {}
    for kind, axis, transfer, wait, unknown in entries:
        exposed[Label(kind, axis, None, "")] = States(from_pairs(transfer), from_pairs(wait), from_pairs(unknown))
    shares = share(exposed)
    assert (shares.ns >= 0).all()
    held = {
        t
        for states in exposed.values()
        for s in (states.transfer, states.wait, states.unknown)
        for a, b in s
        for t in range(a, b)
    }
    assert int(shares.ns.sum()) == len(held)
    assert (shares.ns.sum(axis=0) == shares.right - shares.left).all()
    for column, (left, right) in enumerate(zip(shares.left.tolist(), shares.right.tolist(), strict=True)):
        kinds = {}
        for label, states in exposed.items():
            at = [name for name in ("transfer", "unknown", "wait") if covers_all(getattr(states, name), left, right)]
            if at:
                kinds.setdefault(label.kind, []).append(at[0])
        best = {kind: min(found, key=("transfer", "unknown", "wait").index) for kind, found in kinds.items()}
        if "unknown" in best.values():
            takers = set(best)
        elif "transfer" in best.values():
            takers = {kind for kind, state in best.items() if state == "transfer"}
        else:
            takers = set(best)
        spent = {
            k: int(sum(shares.ns[i, column] for i, label in enumerate(shares.labels) if label.kind is k)) for k in best
        }
        assert {kind for kind, ns in spent.items() if ns} <= takers
        assert max(spent[kind] for kind in takers) - min(spent[kind] for kind in takers) <= 1


def covers_all(intervals: np.ndarray, left: int, right: int) -> bool:
    return any(a <= left and right <= b for a, b in intervals.tolist())


def test_axes_split_a_kind_exactly(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "1", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "2", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 2]},
    ]
    trace = HandMade(0, 4, "nccl", groups).step(1, 0, 100)
    trace.kernel(ALL_REDUCE, 10, 41, 20, **{"Collective name": "allreduce", "Process Group Name": "1"})
    trace.kernel(ALL_REDUCE, 20, 41, 21, **{"Collective name": "allreduce", "Process Group Name": "2"})
    row = only_row(trace, tmp_path)
    assert row.attributed_ns == {Kind.ALL_REDUCE: 31 * US}
    assert row.attributed_by_axis_ns == {Axis.DATA: 20500, Axis.TENSOR: 10500}
    assert row.attributed_by_kind_axis_ns == {Kind.ALL_REDUCE: {Axis.DATA: 20500, Axis.TENSOR: 10500}}


def test_copies_and_the_next_kernel_explain_device_idle_time(tmp_path: Path) -> None:
    """Idle [30, 50): launched at 42, so 12 late and 8 queued; idle [0, 10): launched before the step, all queued."""
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    trace.kernel(GEMM, 10, 30, correlation=1, launch=0).kernel(GEMM, 50, 80, correlation=2, launch=42)
    trace.add("gpu_memcpy", "Memcpy HtoD", 70, 90, 9, device=0, stream=9, correlation=3)
    row = only_row(trace, tmp_path)
    assert (row.compute_ns, row.copies_exposed_ns, row.host_other_ns) == (50 * US, 10 * US, 40 * US)
    assert (row.not_launched_ns, row.queued_ns) == (12 * US, 18 * US)


def test_partition_fills_the_step_and_agrees_with_the_ledger(tmp_path: Path) -> None:
    first, second = HandMade(0).step(1, 0, 60), HandMade(1).step(1, 0, 60)
    for trace, ready in ((first, 10), (second, 30)):
        trace.op("aten::mm", 0, ready)
        trace.op("c10d::allreduce_", ready, ready + 1, **dims(4)).span("gloo:all_reduce", ready + 1, 47, **dims(4))
    result = two_ranks(first, second, tmp_path)
    pieces = partition(analysis_of(result).parts[0, 1])
    assert [(p.category, p.end - p.start) for p in pieces] == [
        ("compute", 10 * US),
        ("all_reduce:wait", 20 * US),
        ("all_reduce:transfer", 17 * US),
        ("host_other", 13 * US),
    ]


@pytest.mark.parametrize("count", [3, 6])
def test_outliers_are_flagged_where_there_are_enough_steps(tmp_path: Path, count: int) -> None:
    trace, start = HandMade(0, 1), 0
    for number in range(count):
        length = 500 if number == 0 else 100 + number
        trace.step(number, start, start + length).op("aten::mm", start, start + length)
        start += length
    result = attribute_paths([trace.write(tmp_path / "rank0.json")])
    rows = result.ranks[0].steps
    assert [row.outlier for row in rows] == [number == 0 and count > 3 for number in range(count)]
    # The lower median of the step times is one real step.
    times = sorted(row.window_ns for row in rows)
    chosen = next(row for row in rows if row.step == result.summary_step)
    assert chosen.window_ns == times[(count - 1) // 2]
