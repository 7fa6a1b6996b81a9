"""Runs whose answer is known beforehand, from real processes to the attributed numbers."""

from pathlib import Path

import bare_strategies
import pytest
import truth_strategies as truth

from shardscope.attribution.api import attribute_run
from shardscope.attribution.result import Attribution, Collective, StepRow
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Kind
from shardscope.workload.spec import WorkloadSpec

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SPEC = WorkloadSpec(name="truth", layers=4, hidden=16, heads=2, sequence_length=8, global_batch=8, micro_batches=4)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=3, timeout_s=120
)
MS = 1_000_000


def measured(name: str, folder: Path) -> Attribution:
    """Measure `truth_strategies:name` and attribute its traces. Nothing is compared with `single` here."""
    bare_strategies.measured(f"truth_strategies:{name}", folder, SPEC, SETTINGS)
    return attribute_run(folder / name)


def summary_rows(result: Attribution) -> dict[int | None, StepRow]:
    return {rank.rank: row for rank in result.ranks for row in rank.steps if row.step == result.summary_step}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Attribution:
    return measured("LATE", tmp_path_factory.mktemp("late"))


def all_reduce(result: Attribution, elements: int) -> Collective:
    (found,) = (
        each
        for each in result.collectives
        if each.step == result.summary_step and each.kind is Kind.ALL_REDUCE and each.bytes == 4 * elements
    )
    return found


def test_a_late_rank_is_named_and_the_others_wait_as_long_as_it_was_late(late: Attribution) -> None:
    small = all_reduce(late, truth.SMALL)
    assert small.last_rank == 1
    assert small.exposed_wait_ns is not None
    assert small.exposed_wait_ns["0"] == pytest.approx(truth.LATE_MS * MS, rel=0.1)
    assert small.exposed_wait_ns["1"] == 0
    rows = summary_rows(late)
    for row in rows.values():
        assert row.total_ns == row.window_ns
    on_time, tardy = rows[0].exposed_wait_ns, rows[1].exposed_wait_ns
    assert on_time is not None
    assert tardy is not None
    assert on_time[Kind.ALL_REDUCE] == pytest.approx(truth.LATE_MS * MS, rel=0.1)
    assert tardy.get(Kind.ALL_REDUCE, 0) < 0.1 * truth.LATE_MS * MS


def test_communication_under_known_work_is_overlapped(late: Attribution) -> None:
    large = all_reduce(late, truth.LARGE)
    assert large.transfer_ns is not None
    row = summary_rows(late)[1]
    assert large.transfer_ns < truth.UNDER_MS * MS, "it fits under the work"
    assert row.overlapped_ns[Kind.ALL_REDUCE] >= 0.9 * large.transfer_ns
    assert row.exposed_ns[Kind.ALL_REDUCE] < 0.1 * large.transfer_ns + 0.1 * truth.LATE_MS * MS
    known = truth.BEFORE_MS + truth.LATE_MS + truth.UNDER_MS + truth.AFTER_MS
    assert row.compute_ns == pytest.approx(known * MS, rel=0.05)


@pytest.mark.parametrize(
    ("schedule", "stages", "parts", "expected"),
    [  # p = 2, m = 4; parts of equal length that a stage does per micro-batch: forward, backward or its two halves
        ("GPIPE", 1, 2, 1 / (4 + 1)),
        ("ONE_F_ONE_B", 1, 2, 1 / (4 + 1)),
        ("INTERLEAVED", 2, 2, 1 / (2 * 4 + 1)),
        ("ZERO_BUBBLE", 2, 3, 0.5 / (3 * 4 + 0.5)),
    ],
)
def test_equal_stages_show_the_bubble_of_the_closed_form(
    schedule: str, stages: int, parts: int, expected: float, tmp_path: Path
) -> None:
    result = measured(schedule, tmp_path)
    (pipeline,) = result.pipelines
    assert pipeline.closed_form_fraction == pytest.approx(expected)
    assert pipeline.measured_fraction == pytest.approx(expected, abs=0.03)
    assert not pipeline.upper_bound, "micro-batches are marked"
    assert pipeline.micro_batches == SPEC.micro_batches
    known = stages * parts * SPEC.micro_batches * truth.STAGE_MS * MS
    for row in summary_rows(result).values():
        assert row.total_ns == row.window_ns
        assert row.bubble_ns is not None
        assert row.compute_ns == pytest.approx(known, rel=0.1), "all of it is compute, and nothing else"
        assert Kind.SEND_RECEIVE not in (row.attributed_wait_ns or {})
    for match in result.collectives:
        assert match.kind is not Kind.SEND_RECEIVE or match.matched_by == "order"
