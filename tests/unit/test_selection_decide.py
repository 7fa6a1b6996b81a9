"""The decision on whole made-up benchmarks: what is recommended, what is said of everything else."""

import math
from pathlib import Path

import msgspec
import pytest
from selection_runs import ENVIRONMENT, MB, SPEC, Fake, nine, write

from shardscope.errors import ResultError
from shardscope.measure.record import Failure
from shardscope.selection.api import decide, load, save
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Basis, CheckStatus, Constraint, Constraints, Standing, Verdict
from shardscope.vocabulary import Axis, Kind, Status

FREE = Constraints(require_convergence=False)
REDUCE = {Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)}


def _decide(tmp_path: Path, fakes: list[Fake], constraints: Constraints = FREE) -> Decision:
    return decide(fakes[0].spec.name, write(tmp_path, fakes), constraints)


def _two(**candidate: object) -> list[Fake]:
    return [Fake("ddp", step=100, peak=64), Fake("zero1", **{"step": 110, "peak": 52, **candidate})]  # type: ignore[arg-type]


def test_fastest_that_meets_the_constraints(tmp_path: Path) -> None:
    decision = _decide(tmp_path, nine(), Constraints(memory_cap_mb=60, max_communication_fraction=0.25))
    answer = decision.recommendation
    assert answer.name == "zero1"
    assert answer.passing == ("zero1", "zero2", "pipeline_1f1b", "pipeline_gpipe")
    assert [rejected.name for rejected in answer.rejected] == ["ddp"]
    assert answer.rejected[0].failing == (Constraint.MEMORY,)
    assert answer.rejected[0].change.difference == pytest.approx(0.06, abs=0.01)
    assert decision.strategy("single").standing is Standing.REFERENCE


def test_changes_carry_interval_floor_and_verdict(tmp_path: Path) -> None:
    decision = _decide(tmp_path, _two())
    row = decision.strategy("zero1")
    change = row.step_ns.change
    assert change is not None and change.low is not None and change.high is not None
    assert change.against == "ddp" and change.basis is Basis.PAIRED and change.verdict is Verdict.WORSE
    assert change.low < 0.10 < change.high and change.count == 25
    rate = row.throughput.change
    assert rate is not None and rate.difference == pytest.approx(1 / (1 + change.difference) - 1)
    memory = row.peak_bytes.change
    assert memory is not None and memory.verdict is Verdict.BETTER
    assert memory.difference == pytest.approx(52 / 64 - 1)
    assert decision.strategy("ddp").step_ns.change is None


def test_memory_difference_below_both_residues_is_not_claimed(tmp_path: Path) -> None:
    fakes = [Fake("ddp", peak=64, residue=1.5), Fake("zero1", peak=61.5, residue=1.5)]
    change = _decide(tmp_path, fakes).strategy("zero1").peak_bytes.change
    assert change is not None and change.verdict is Verdict.WITHIN_NOISE
    fakes[1].peak = 60.5
    change = _decide(tmp_path, fakes).strategy("zero1").peak_bytes.change
    assert change is not None and change.verdict is Verdict.BETTER


def test_a_tie_goes_to_the_one_that_needs_less_memory(tmp_path: Path) -> None:
    decision = _decide(tmp_path, _two(step=100.02))
    answer = decision.recommendation
    assert answer.name == "zero1" and set(answer.tied) == {"ddp", "zero1"}
    assert decision.next_step.why == "tie"
    assert decision.next_step.command == (
        "snakemake --cores 4 --force traces/gpt3m/zero1 traces/gpt3m/ddp && snakemake --cores 4 reports/summary.md"
    )
    change = decision.strategy("zero1").throughput.change
    assert change is not None and change.verdict is Verdict.WITHIN_NOISE


def test_budget_follows_the_peaks(tmp_path: Path) -> None:
    budget = _decide(tmp_path, nine()).budget
    choices = [(entry.choice, entry.from_bytes / MB, entry.below_bytes) for entry in budget.entries]
    assert choices == [
        ("ddp", 64, None),
        ("zero1", 52, 64 * MB),
        ("pipeline_1f1b", 46, 52 * MB),
        ("zero3", 44, 46 * MB),
        ("tensor_sequence", 42, 44 * MB),
    ]
    assert budget.nothing_below_bytes == 42 * MB and not budget.left_out
    # Whatever the cap, the choice fits and nothing that fits is faster beyond the noise.
    decision = _decide(tmp_path, nine())
    assert decision.strategy("tensor").outdone is not None
    outdone = decision.strategy("zero2").outdone
    assert outdone is not None and outdone.by == "zero1" and outdone.peak_bytes < 58 * MB


def test_a_cap_between_two_peaks_that_cannot_be_told_apart_is_none(tmp_path: Path) -> None:
    """zero1 and zero2 differ by less than their residues: the faster has the range of both."""
    fakes = [Fake("ddp", peak=64), Fake("zero1", step=103, peak=52.3), Fake("zero2", step=106, peak=52.0)]
    decision = _decide(tmp_path, [*fakes, Fake("zero3", step=130, peak=40)])
    entries = [
        (entry.choice, entry.from_bytes / MB, entry.below_bytes, entry.above) for entry in decision.budget.entries
    ]
    assert entries == [
        ("ddp", 64, None, None), ("zero1", 52.3, 64 * MB, "ddp"), ("zero3", 40, 52.3 * MB, "zero1")
    ]  # fmt: skip
    outdone = decision.strategy("zero2").outdone
    assert outdone is not None and outdone.by == "zero1"
    assert outdone.change is not None and outdone.change.verdict is Verdict.BETTER


def test_budget_leaves_out_what_fails_another_constraint(tmp_path: Path) -> None:
    budget = _decide(tmp_path, nine(), Constraints(max_communication_fraction=0.25)).budget
    assert set(budget.left_out) == {"zero3", "tensor", "tensor_sequence"}
    assert all(entry.choice not in budget.left_out for entry in budget.entries)
    everything = _decide(tmp_path, nine(), Constraints(max_communication_fraction=0.01)).budget
    assert everything.constraints_ignored and everything.entries[0].choice == "ddp"


def test_too_noisy_ranks_by_memory_only(tmp_path: Path) -> None:
    fakes = [Fake("ddp", noise=0.5), Fake("zero1", step=60, peak=58, noise=0.5), Fake("zero3", peak=40, noise=0.5)]
    decision = _decide(tmp_path, fakes, Constraints(max_step_time_ms=1.0, require_convergence=False))
    answer = decision.recommendation
    assert (answer.name, answer.by, answer.no_time_reason) == ("zero3", "memory", "noise")
    for row in decision.strategies:
        assert row.noise is not None and row.noise.too_noisy and not row.time_evidence
        assert [check.status for check in row.checks] == [CheckStatus.NOT_JUDGED]
    change = decision.strategy("zero1").throughput.change
    assert change is not None and change.verdict is Verdict.NOT_JUDGED
    assert decision.budget.by == "memory"
    memory = decision.strategy("zero1").peak_bytes.change
    assert memory is not None and memory.verdict is Verdict.BETTER
    assert decision.next_step.why == "noise"


def test_one_noisy_run_among_quiet_ones_is_named_and_not_ranked(tmp_path: Path) -> None:
    fakes = [Fake("ddp"), Fake("zero1", step=110, peak=55), Fake("zero2", step=50, noise=0.6, peak=57)]
    answer = _decide(tmp_path, fakes).recommendation
    assert answer.name == "ddp" and answer.by == "throughput" and answer.unranked == ("zero2",)


def test_oversubscribed_times_are_no_evidence(tmp_path: Path) -> None:
    crowded = msgspec.structs.replace(ENVIRONMENT, oversubscribed=True, world_size=4)
    decision = _decide(tmp_path, [Fake("ddp", environment=crowded), Fake("zero1", environment=crowded, peak=50)])
    assert decision.recommendation.no_time_reason == "oversubscribed"
    assert decision.recommendation.name == "zero1"
    assert decision.strategy("zero1").transfer_fraction.change is None


def test_failed_not_applicable_and_disqualified_keep_their_row(tmp_path: Path) -> None:
    log = Failure(rank=1, exit_code=None, signal="SIGKILL", log_tail=("boom",))
    decision = _decide(
        tmp_path,
        [
            Fake("ddp"),
            Fake("zero2", status=Status.FAILED, reason="rank 1 was killed by SIGKILL", failure=log),
            Fake("tensor", status=Status.NOT_APPLICABLE, reason="3 ranks do not divide 4 heads"),
            Fake("zero3", status=Status.OUT_OF_MEMORY, reason="rank 0 ran out of memory"),
            Fake("zero1", step=50, gradient_error=0.9),
        ],
    )
    standings = {row.name: row.standing for row in decision.strategies}
    assert standings == {
        "ddp": Standing.ELIGIBLE,
        "zero2": Standing.FAILED,
        "tensor": Standing.NOT_APPLICABLE,
        "zero3": Standing.OUT_OF_MEMORY,
        "zero1": Standing.DISQUALIFIED,
    }
    assert decision.failed == ("zero2",) and decision.recommendation.name == "ddp"
    assert decision.next_step.why == "failed"
    # Twice as fast, and wrong: nowhere in the choice.
    assert [entry.choice for entry in decision.budget.entries] == ["ddp"]
    assert decision.strategy("zero1").throughput.change is None


@pytest.mark.parametrize("field", ["gradient_error", "loss_error"])
def test_infinite_errors_disqualify(tmp_path: Path, field: str) -> None:
    decision = _decide(tmp_path, _two(step=10, **{field: 1.7976931348623157e308}))
    assert decision.strategy("zero1").standing is Standing.DISQUALIFIED
    assert decision.recommendation.name == "ddp"


@pytest.mark.parametrize(("status", "reason"), [(Status.OUT_OF_MEMORY, "out_of_memory"), (Status.FAILED, "failed")])
def test_baseline_that_does_not_fit(tmp_path: Path, status: Status, reason: str) -> None:
    fakes = [
        Fake("single", "single process", (), step=180, mode="alone"),
        Fake("ddp", status=status, reason="rank 0 ran out of memory during timing"),
        Fake("zero2", step=118, mode="alone", peak=58),
        Fake("zero3", step=140, mode="alone", peak=44),
    ]
    decision = _decide(tmp_path, fakes)
    assert (decision.compared_with, decision.baseline_reason) == ("zero2", reason)
    change = decision.strategy("zero3").throughput.change
    assert change is not None and change.basis is Basis.SEPARATE_JOBS and change.against == "zero2"
    assert change.difference == pytest.approx(118 / 140 - 1, abs=0.02)
    assert decision.recommendation.name == "zero2"


def test_disqualified_baseline_is_not_compared_with(tmp_path: Path) -> None:
    decision = _decide(tmp_path, [Fake("ddp", loss_error=0.1), Fake("zero1", step=110), Fake("zero2", step=130)])
    assert (decision.compared_with, decision.baseline_reason) == ("zero1", "disqualified")
    change = decision.strategy("zero2").throughput.change
    assert change is not None and change.basis is Basis.VIA_BASELINE
    assert change.difference == pytest.approx(110 / 130 - 1, abs=0.02)


def test_other_world_size_or_workload_is_not_compared(tmp_path: Path) -> None:
    four = msgspec.structs.replace(ENVIRONMENT, world_size=4)
    other = msgspec.structs.replace(SPEC, layers=8)
    decision = _decide(
        tmp_path, [Fake("ddp"), Fake("zero1"), Fake("zero3", step=20, environment=four), Fake("zero2", spec=other)]
    )
    assert decision.strategy("zero3").standing is Standing.INCOMPARABLE
    assert decision.strategy("zero3").reason == "world_size 4, others 2"
    assert decision.strategy("zero2").reason == "layers 8, others 4"
    assert decision.recommendation.name == "ddp"


@pytest.mark.parametrize(("all_cores", "cap", "pays"), [(90.0, None, True), (90.0, 60.0, False), (130.0, None, False)])
def test_one_process_with_all_cores(tmp_path: Path, all_cores: float, cap: float | None, pays: bool) -> None:
    fakes = [Fake("single", "single process", (), step=180, peak=70, all_cores=all_cores), *_two()]
    limits = Constraints(memory_cap_mb=cap, require_convergence=False)
    claim = _decide(tmp_path, fakes, limits).all_cores
    assert claim is not None and claim.pays is pays
    # Both are paired with ddp of 100 ms; the recommended one is ddp without a cap, zero1 of 110 ms with it.
    expected = (100 if cap is None else 110) / all_cores - 1
    assert claim.change.difference == pytest.approx(expected, abs=0.02)
    assert claim.fits is (cap is None)


def test_nothing_passes_gives_the_nearest_miss(tmp_path: Path) -> None:
    decision = _decide(tmp_path, _two(), Constraints(memory_cap_mb=50))
    assert decision.recommendation.name is None and decision.recommendation.nearest_miss == "zero1"
    assert decision.opportunities == ()
    assert decision.next_step.why == "nearest_miss"


def test_nothing_ran(tmp_path: Path) -> None:
    decision = _decide(tmp_path, [Fake("ddp", status=Status.FAILED, reason="boom")])
    assert decision.recommendation.name is None and decision.compared_with is None
    assert decision.budget.entries == () and decision.all_cores is None


def test_decision_survives_its_file(tmp_path: Path) -> None:
    decision = _decide(tmp_path, nine(), Constraints(memory_cap_mb=60))
    path = tmp_path / "deep" / "decision.json"
    save(decision, path)
    assert load(path) == decision
    assert [p.name for p in path.parent.iterdir()] == ["decision.json"]
    path.write_text('{"schema": 1}')
    with pytest.raises(ResultError, match="not a decision"):
        load(path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    folders = write(tmp_path, _two())
    with pytest.raises(ResultError, match="holds gpt3m/ddp, not gpt3m/zero3"):
        decide("gpt3m", {"zero3": folders["ddp"]}, FREE)
    with pytest.raises(ResultError, match="no strategy"):
        decide("gpt3m", {}, FREE)


def test_audit_sees_a_broken_plan(tmp_path: Path) -> None:
    fakes = [Fake("ddp", parts=REDUCE, extra_calls=1), Fake("zero1", parts=REDUCE)]
    decision = _decide(tmp_path, fakes)
    (broken,) = decision.strategy("ddp").audit
    assert not broken.agrees and broken.detail is not None and "expected 4" in broken.detail
    assert broken.expected_count == (4, 4) and broken.seen_count == (5, 5)
    (right,) = decision.strategy("zero1").audit
    assert right.agrees and right.detail is None


def test_volumes_in_three_columns(tmp_path: Path) -> None:
    """Two ranks, S = 4 MB: all-reduce sends 2·S in all, gloo's reduce-scatter twice NCCL's S."""
    parts = {Kind.ALL_REDUCE: (Axis.DATA, 1.0, 0.0, 0.0), Kind.REDUCE_SCATTER: (Axis.DATA, 1.0, 0.0, 0.0)}
    volumes = {v.kind: v for v in _decide(tmp_path, [Fake("ddp", parts=parts)]).strategy("ddp").volumes}
    assert (volumes[Kind.ALL_REDUCE].backend_bytes, volumes[Kind.ALL_REDUCE].nccl_bytes) == (8 * MB, 8 * MB)
    assert (volumes[Kind.REDUCE_SCATTER].backend_bytes, volumes[Kind.REDUCE_SCATTER].nccl_bytes) == (8 * MB, 4 * MB)
    assert all(volume.payload_bytes == 4 * MB and volume.count == 4 for volume in volumes.values())


def test_blame_names_the_part_that_grew(tmp_path: Path) -> None:
    blame = _decide(tmp_path, nine()).strategy("pipeline_gpipe").blame
    assert blame is not None and blame.most == "stall" and blame.part == "bubble"
    # By the shares of the ledger (24 of 122 ms are bubble) on the measured step times, which carry 1 % noise.
    assert blame.part_ns == pytest.approx(24e6, rel=0.03) and blame.total_ns == pytest.approx(22e6, rel=0.03)
    assert blame.transfer_ns is not None and blame.stall_ns is not None
    parts = blame.transfer_ns + blame.stall_ns + blame.scheduling_ns + blame.compute_ns
    assert parts == pytest.approx(blame.total_ns)


def test_convergence(tmp_path: Path) -> None:
    flat, huge = tuple([5.0] * 16), (5.0,) * 15 + (1.7976931348623157e308,)
    fakes = [Fake("ddp"), Fake("zero1", losses=flat), Fake("zero2", losses=huge)]
    decision = _decide(tmp_path, fakes, Constraints())
    found = {row.name: row.convergence for row in decision.strategies}
    assert found["ddp"] is not None and found["ddp"].converged and found["ddp"].fall is not None
    assert math.isclose(found["ddp"].fall, 1 - 4.15 / 5.35)
    assert [check.why for check in decision.strategy("zero1").checks] == ["no_fall"]
    assert [check.why for check in decision.strategy("zero2").checks] == ["not_finite"]
    assert decision.recommendation.name == "ddp"


def test_opportunities(tmp_path: Path) -> None:
    limits = Constraints(memory_cap_mb=60, max_communication_fraction=0.25)
    found = {o.by: o for o in _decide(tmp_path, nine(), limits).opportunities}
    assert found["cap_raised"].name == "ddp" and found["cap_raised"].value == 64 * MB
    assert found["cap_lowered"].name == "pipeline_1f1b" and found["cap_lowered"].value == 52 * MB
    assert found["bandwidth"].predicted and found["bandwidth"].value < 1
    fast = [
        *_two(step=110),
        Fake("tensor", step=60, parts={Kind.ALL_REDUCE: (Axis.TENSOR, 20.0, 0.0, 0.0)}, compute=30),
    ]
    moved = _decide(tmp_path, fast, Constraints(max_communication_fraction=0.3)).opportunities
    (limit,) = [o for o in moved if o.by == "limit_moved"]
    assert limit.name == "tensor" and limit.constraint is Constraint.COMMUNICATION
    assert limit.value == pytest.approx(20 / 60)
