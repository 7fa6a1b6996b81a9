"""Idle time of pipelines by hand: its parts by rank, and the better split of the layers."""

from pathlib import Path

import pytest
from msgspec import structs
from selection_runs import nine, write

from shardscope.attribution.intervals import from_pairs
from shardscope.attribution.result import Attribution, Clock, PipelineBubble
from shardscope.errors import ResultError
from shardscope.report import evidence_pipeline
from shardscope.report.attributions import attributions
from shardscope.selection.api import decide
from shardscope.selection.pipeline_idle import RankIdle, better_split, idle_by_rank, read_intervals
from shardscope.selection.terms import Constraints


def result(offsets: dict[str, int] | None = None) -> Attribution:
    clock = Clock(applied=bool(offsets), offset_ns=offsets or {}, residual_ns=None)
    return Attribution(ranks=[], collectives=[], pipelines=[], clock=clock, missing_ranks=[], skipped_files=[])


PIPELINE = PipelineBubble(
    ranks=(0, 1), micro_batches=2, makespan_ns=100, measured_fraction=0.35, closed_form_fraction=0.2,
    fraction_by_rank={"0": 0.40, "1": 0.30},
)  # fmt: skip
ZERO = {
    "compute": from_pairs([(0, 30), (60, 90)]),
    "send_receive:transfer": from_pairs([(30, 35)]),
    "bubble": from_pairs([(35, 60), (90, 105)]),
}
ONE = {
    "compute": from_pairs([(30, 50), (52, 60)]),
    "host_other": from_pairs([(50, 52)]),
    "bubble": from_pairs([(-20, 30), (60, 70)]),
    "send_receive:transfer": from_pairs([(96, 98)]),
}


@pytest.mark.parametrize("shift", [0, 1000])
def test_the_parts_of_each_rank_add_up(shift: int) -> None:
    """Rank 0: [35, 60) under rank 1's work; [90, 100) in the span, of which [96, 98) is a message's."""
    moved = {category: intervals + shift for category, intervals in ONE.items()}
    found = idle_by_rank(PIPELINE, result({"1": shift} if shift else None), {0: ZERO, 1: moved})
    first, second = found
    assert (first.measured, first.closed_form) == (0.40, 0.2)
    assert first.communication == pytest.approx(0.02) and first.overhead == pytest.approx(0.08)
    assert first.imbalance == pytest.approx(0.40 - 0.2 - 0.1)
    assert first.leading == "imbalance"
    # What rank 1 waited for before the span (rank 0 still in its last step) is not this step's.
    assert (second.communication, second.overhead) == (0, 0)
    for idle in found:
        parts = idle.closed_form + idle.imbalance + idle.communication + idle.overhead
        assert parts == pytest.approx(idle.measured)


def test_without_closed_form_or_rank_nothing_is_said() -> None:
    assert idle_by_rank(PIPELINE, result(), {0: ZERO}) == []
    unknown = PipelineBubble(
        ranks=(0, 1), micro_batches=2, makespan_ns=None, measured_fraction=None, closed_form_fraction=0.2
    )
    assert idle_by_rank(unknown, result(), {0: ZERO, 1: ONE}) == []


def test_a_heavy_head_moves_layers_to_the_first_stage() -> None:
    # 10 per layer, a head of 25: 4 + 4 → 40 | 65; 5 + 3 → 50 | 55; 6 + 2 → 60 | 45.
    split = better_split([4, 4], [40.0, 65.0])
    assert split is not None
    assert (split.now, split.better) == ((4, 4), (5, 3))
    assert split.gain == pytest.approx(1 - 55 / 65)


def test_embeddings_of_the_first_and_the_head_of_the_last_stage_stay() -> None:
    # 10 per layer from the inner stage; 15 more on the first, 5 on the last: 35 | 20 | 25 → 1 + 3 + 2 → 25 | 30 | 25.
    split = better_split([2, 2, 2], [35.0, 20.0, 25.0])
    assert split is not None
    assert split.better == (1, 3, 2) and split.gain == pytest.approx(1 - 30 / 35)


@pytest.mark.parametrize(
    ("layers", "times"),
    [([2, 2], [40.0, 41.0]), ([1, 1], [10.0, 50.0]), ([4], [10.0]), ([4, 4], [0.0, 10.0])],
)
def test_no_better_split(layers: list[int], times: list[float]) -> None:
    assert better_split(layers, times) is None


def test_too_many_splits_are_not_tried() -> None:
    assert better_split([16] * 16, [1.0] * 15 + [9.0]) is None


def test_no_split_is_suggested_for_a_model_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [fake for fake in nine() if fake.name in ("ddp", "pipeline_1f1b")]
    found = write(tmp_path, fakes)
    decision = decide("gpt3m", found, Constraints())
    folders = {("gpt3m", name): folder for name, (_, folder) in found.items()}
    monkeypatch.setattr(evidence_pipeline, "_led_by_imbalance", lambda idle: True)
    idle = evidence_pipeline.pipelines(decision, folders, attributions(decision, folders))
    (said,) = evidence_pipeline.split_lines(decision, idle)
    assert "`pipeline_1f1b`" in said
    own = structs.replace(decision, workload=structs.replace(decision.workload, model="not_installed_here:build"))
    assert evidence_pipeline.split_lines(own, idle) == []


def test_what_leads_is_named_only_where_there_is_idle_time_beyond_the_closed_form(
    tmp_path: Path,
) -> None:
    found = write(tmp_path, [fake for fake in nine() if fake.name in ("ddp", "pipeline_1f1b")])
    row = decide("gpt3m", found, Constraints()).strategy("pipeline_1f1b")
    ranks = [
        RankIdle(rank=0, measured=0.3, closed_form=0.2, imbalance=0.0, communication=0.1, overhead=0.0),
        RankIdle(rank=1, measured=0.1, closed_form=0.2, imbalance=-0.2, communication=0.1, overhead=0.0),
    ]
    _, rows = evidence_pipeline.pipeline_idle([evidence_pipeline.IdlePipeline(row, result(), ranks)])
    assert [each[-1] for each in rows] == ["waiting for messages", "–"]


def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="attribute the run again"):
        read_intervals(tmp_path)
    (tmp_path / "intervals.csv").write_text("rank,step,category,start_ns,end_ns\n0,1,compute,x,2\n", encoding="utf-8")
    with pytest.raises(ResultError, match="attribute the run again"):
        read_intervals(tmp_path)
