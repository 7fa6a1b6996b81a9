"""The pipeline bubble: where it is, its closed form, and what the difference is made of."""

from pathlib import Path

import pytest
from handmade import HandMade

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.bubble import closed_form
from shardscope.attribution.result import Attribution
from shardscope.vocabulary import Kind

US = 1000


def message(trace: HandMade, peer: int, send: bool, start: float, end: float) -> None:
    """A point-to-point call of length 0 and its span [start, end)."""
    name, span = ("c10d::send", "gloo:send") if send else ("c10d::recv_", "gloo:recv")
    inputs = {"Concrete Inputs": ["", "", str(peer), "0"], "Input Dims": [[[4]], [], [], []]}
    trace.op(name, start, start + 0.001, **inputs).span(span, start, end, tid=1)


def compute(trace: HandMade, what: str, index: int, start: float, end: float, marks: bool = True) -> None:
    trace.op("aten::mm", start, end)
    if marks:
        trace.span(f"shardscope::{what}#{index}", start, end, tid=1)


def gpipe(folder: Path, *, marks: bool = True, slow: float = 1.0, barrier: bool = False) -> Attribution:
    """GPipe, two stages, two micro-batches, forward and backward 100 each; stage 1 is `slow` times slower.

    Stage 0: F0 F1 . . B0 B1, stage 1: . F0 F1 B0 B1 ., messages take no time.
    """
    unit, other = 100.0, 100.0 * slow
    first, second = HandMade(0), HandMade(1)
    compute(first, "forward", 0, 0, unit, marks)
    message(first, 1, True, unit, unit + 0.01)
    compute(first, "forward", 1, unit + 1, 2 * unit, marks)
    message(first, 1, True, 2 * unit, 2 * unit + 0.01)
    message(second, 0, False, 1, unit)
    at = unit
    for index in (0, 1):
        compute(second, "forward", index, at, at + other, marks)
        at += other
        if index == 0:
            message(second, 0, False, at - 0.5, at)
    arrivals = []
    for index in (0, 1):
        compute(second, "backward", index, at, at + other, marks)
        at += other
        arrivals.append(at)
        message(second, 0, True, at, at + 0.01)
    end_of_second = at
    at = 2 * unit + 1
    for index, arrival in enumerate(arrivals):
        message(first, 1, False, at, max(at + 0.01, arrival))
        at = max(at + 0.02, arrival)
        compute(first, "backward", index, at, at + unit, marks)
        at += unit
    if barrier:
        inputs = {"Input Dims": [[1]]}
        second.op("c10d::barrier", end_of_second + 1, end_of_second + 2, **inputs)
        second.span("gloo:barrier", end_of_second + 2, at + 20)
        first.op("c10d::barrier", at + 10, at + 11, **inputs).span("gloo:barrier", at + 11, at + 20)
    for trace in (first, second):
        trace.op("aten::add_", at + 30, at + 50).span("Optimizer.step#AdamW.step", at + 30, at + 50, tid=1).step(
            1, 0, at + 60
        )
    first.write(folder / "rank0.json")
    second.write(folder / "rank1.json")
    result = attribute_paths([folder])
    assert all(row.total_ns == row.window_ns for rank in result.ranks for row in rank.steps)
    return result


@pytest.mark.parametrize("marks", [True, False])
def test_equal_stages_show_the_closed_form(tmp_path: Path, marks: bool) -> None:
    result = gpipe(tmp_path, marks=marks)
    (pipeline,) = result.pipelines
    assert pipeline.micro_batches == 2
    assert pipeline.makespan_ns == pytest.approx(600 * US, rel=0.01)
    assert pipeline.closed_form_fraction == pytest.approx(1 / 3)
    assert pipeline.measured_fraction == pytest.approx(1 / 3, abs=0.01)
    assert pipeline.upper_bound is not marks
    assert pipeline.imbalance_fraction == pytest.approx(0, abs=0.01)


def test_phases_add_up_and_lie_where_they_belong(tmp_path: Path) -> None:
    result = gpipe(tmp_path)
    first, second = (rank.steps[0] for rank in result.ranks)
    for row in (first, second):
        phases = row.bubble_phase_ns
        assert phases is not None
        assert phases.before + phases.between + phases.after == row.bubble_ns
        assert Kind.SEND_RECEIVE not in (row.attributed_wait_ns or {})
    assert first.bubble_phase_ns is not None
    assert second.bubble_phase_ns is not None
    assert first.bubble_phase_ns.between == pytest.approx(200 * US, rel=0.02)
    assert (first.bubble_phase_ns.before, first.bubble_phase_ns.after) == (0, 0)
    assert second.bubble_phase_ns.before == pytest.approx(100 * US, rel=0.02)
    assert second.bubble_phase_ns.after == pytest.approx(100 * US, rel=0.02)


def test_idle_in_the_optimizer_phase_is_not_bubble(tmp_path: Path) -> None:
    """30 before the optimizer and 10 after it lie outside [A, Z): host, on both ranks."""
    rows = [rank.steps[0] for rank in gpipe(tmp_path).ranks]
    assert [row.host_other_ns for row in rows] == pytest.approx([41 * US, 40 * US], abs=2 * US)
    assert all(row.compute_ns >= 20 * US for row in rows)


def test_a_barrier_that_ties_the_stages_waits_for_the_pipeline(tmp_path: Path) -> None:
    """Stage 1 waits in a barrier from 501 on; up to the end of the pipeline that is bubble, the rest is not."""
    result = gpipe(tmp_path, barrier=True)
    first, second = (rank.steps[0] for rank in result.ranks)
    assert second.bubble_ns == pytest.approx(200 * US, rel=0.02)
    (pipeline,) = result.pipelines
    assert pipeline.measured_fraction == pytest.approx(1 / 3, abs=0.01)
    assert second.attributed_ns[Kind.OTHER] == pytest.approx(20 * US, abs=US)
    assert first.attributed_ns[Kind.OTHER] == pytest.approx(10 * US, abs=US)


def test_a_heavier_stage_is_named_imbalance(tmp_path: Path) -> None:
    """Stage 1 twice as slow: makespan 100 + 4·200 + 100 = 1000, bubble 600 and 200, mean 0.4 against 1/3."""
    (pipeline,) = gpipe(tmp_path, slow=2.0).pipelines
    assert pipeline.measured_fraction == pytest.approx(0.4, abs=0.01)
    parts = (pipeline.imbalance_fraction, pipeline.communication_wait_fraction, pipeline.overhead_fraction)
    assert pipeline.imbalance_fraction == pytest.approx(0.4 - 1 / 3, abs=0.01)
    assert sum(part or 0 for part in parts) == pytest.approx((pipeline.measured_fraction or 0) - 1 / 3)


def test_kernels_that_do_not_say_what_they_send(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = HandMade(rank, 2, "nccl").step(1, 0, 50).kernel("gemm", 0, 20)
        trace.kernel("ncclDevKernel_SendRecv(x)", 20, 40, 20).write(tmp_path / f"rank{rank}.json")
    result = attribute_paths([tmp_path])
    assert all(rank.steps[0].bubble_ns is None for rank in result.ranks)
    (pipeline,) = result.pipelines
    assert pipeline.measured_fraction is None
    assert "which send/receive kernels send" in str(pipeline.reason)


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "stages", "fraction"),
    [(2, 4, 1, 0.2), (4, 4, 1, 3 / 7), (4, 8, 2, 3 / 19), (1, 4, 1, 0)],
)
def test_closed_forms(ranks: int, micro_batches: int, stages: int, fraction: float) -> None:
    assert closed_form(ranks, micro_batches, stages) == pytest.approx(fraction)
