"""Each constraint: who passes, by how much others fail, and the change that would make them pass."""

from pathlib import Path

import pytest
from selection_runs import Fake, write

from shardscope.selection.api import decide
from shardscope.selection.claims import Check, LedgerMean
from shardscope.selection.rescale import LARGEST_FACTOR, Scaled, predictions, scaled_ledger
from shardscope.selection.terms import CheckStatus, Constraint, Constraints
from shardscope.vocabulary import Axis, Kind

PARTS = {Kind.ALL_REDUCE: (Axis.DATA, 24.0, 6.0, 0.0)}


def _check(tmp_path: Path, fake: Fake, **limits: float | bool) -> Check:
    constraints = Constraints(**{"require_convergence": False, **limits})  # type: ignore[arg-type]
    decision = decide("gpt3m", write(tmp_path, [Fake("ddp"), fake]), constraints)
    (check,) = decision.strategy(fake.name).checks
    return check


@pytest.mark.parametrize(
    ("limits", "passing", "failing", "excess"),
    [
        ({"memory_cap_mb": 60.0}, {"peak": 59.0}, {"peak": 66.0}, 0.1),
        ({"min_throughput_tokens_per_s": 9000.0}, {"step": 100.0}, {"step": 1024 / 8.1}, 0.1),
        ({"max_step_time_ms": 120.0}, {"step": 100.0}, {"step": 132.0}, 0.1),
        ({"max_request_latency_ms": 6.0}, {"request": 5.0}, {"request": 6.6}, 0.1),
        ({"max_communication_fraction": 0.25}, {}, {"parts": PARTS}, 0.2),
    ],
)
def test_each_constraint(
    tmp_path: Path, limits: dict[str, float], passing: dict[str, float], failing: dict[str, float], excess: float
) -> None:
    passed = _check(tmp_path, Fake("zero1", compute=60, **passing), **limits)  # type: ignore[arg-type]
    failed = _check(tmp_path, Fake("zero1", compute=60, **failing), **limits)  # type: ignore[arg-type]
    assert passed.constraint == failed.constraint == next(iter(limits))
    assert passed.status is CheckStatus.PASSED and passed.excess is None and not passed.remedies
    assert failed.status is CheckStatus.FAILED and failed.excess == pytest.approx(excess, abs=0.02)
    error = 0.2 if "memory_cap_mb" in limits else 0.0  # a cap that surely holds the peak holds its residue too
    assert failed.remedies[0].what == "limit" and failed.remedies[0].value == pytest.approx(failed.value + error)
    assert not failed.remedies[0].predicted and all(remedy.predicted for remedy in failed.remedies[1:])


def test_bandwidth_that_meets_the_communication_limit_really_does(tmp_path: Path) -> None:
    check = _check(tmp_path, Fake("zero1", compute=60, parts=PARTS), max_communication_fraction=0.25)
    (remedy,) = [r for r in check.remedies if r.what == "bandwidth"]
    transfer = 24 / remedy.value
    assert (transfer + 6) / (100 - 24 + transfer) == pytest.approx(0.25)


def test_no_bandwidth_helps_when_waiting_alone_is_too_much(tmp_path: Path) -> None:
    check = _check(tmp_path, Fake("zero1", compute=60, parts=PARTS), max_communication_fraction=0.05)
    assert [r.what for r in check.remedies] == ["limit", "floor"]
    assert check.remedies[1].value == pytest.approx(6 / 76)


def test_bandwidth_or_its_ceiling_for_a_step_time(tmp_path: Path) -> None:
    near = _check(tmp_path, Fake("zero1", compute=60, parts=PARTS, noise=1e-6), max_step_time_ms=90.0)
    assert near.remedies[1].what == "bandwidth" and near.remedies[1].value == pytest.approx(24 / 14, rel=1e-3)
    far = _check(tmp_path, Fake("zero1", compute=60, parts=PARTS, noise=1e-6), max_step_time_ms=50.0)
    assert far.remedies[1].what == "ceiling" and far.remedies[1].value == pytest.approx(100 / 76, rel=1e-3)


def test_micro_batches_shrink_the_bubble(tmp_path: Path) -> None:
    fake = Fake("zero1", compute=60, bubble=20.0, noise=1e-6)
    check = _check(tmp_path, fake, max_step_time_ms=90.5)
    (remedy,) = [r for r in check.remedies if r.what == "micro_batches"]
    assert remedy.value == 8  # bubble 20 · 4/8 = 10; 8 divides the batch of 16


def test_a_limit_closer_than_the_error_is_marked(tmp_path: Path) -> None:
    assert _check(tmp_path, Fake("zero1", peak=59.9, residue=0.2), memory_cap_mb=60.0).marginal
    assert not _check(tmp_path, Fake("zero1", peak=59.0, residue=0.2), memory_cap_mb=60.0).marginal


def test_convergence_is_required_by_default() -> None:
    assert Constraints().require_convergence


@pytest.mark.parametrize(
    "limits", [{"memory_cap_mb": 0.0}, {"max_step_time_ms": -1.0}, {"max_communication_fraction": 1.5}]
)
def test_impossible_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Constraints(**limits)  # type: ignore[arg-type]


def _scaled(step: float, transfer: float, **parts: float) -> Scaled:
    known = {"waiting": 0.0, "hidden": 0.0, "bubble": 0.0, "fixed": 0.0, **parts}
    return Scaled(step=step, transfer=transfer, micro_batches=4, global_batch=16, axes_known=True, **known)


def test_predicted_bandwidth_makes_both_steps_equal() -> None:
    mine, other = _scaled(130, 50, fixed=50), _scaled(100, 10, fixed=10)
    found = {p.by: p for p in predictions(mine, other, "ddp")}
    factor = found["bandwidth"].factor
    assert factor is not None and found["bandwidth"].outcome == "overtakes"
    assert 130 - 50 + 50 / factor == pytest.approx(100 - 10 + 10 / factor)
    # The batch: fixed 50 + k·80 = 10 + k·90.
    assert found["batch"].factor == pytest.approx(4.0) and found["batch"].outcome == "overtakes"


def test_slower_network_exposes_what_is_hidden_now() -> None:
    mine, other = _scaled(110, 5), _scaled(100, 10, hidden=20)
    (found,) = [p for p in predictions(mine, other, "ddp") if p.by == "bandwidth"]
    assert found.factor is not None and found.factor < 1
    y = 1 / found.factor
    assert 110 + 5 * (y - 1) == pytest.approx(100 + 30 * (y - 1))


def test_never_says_how_far_behind_it_stays() -> None:
    (found,) = [p for p in predictions(_scaled(200, 10), _scaled(100, 10), "ddp") if p.by == "bandwidth"]
    assert found.outcome == "never" and found.factor == LARGEST_FACTOR
    assert found.behind == pytest.approx(1 - (90 + 10 / 64) / (190 + 10 / 64))


def test_faster_one_may_be_overtaken() -> None:
    found = {p.by: p.outcome for p in predictions(_scaled(100, 10), _scaled(120, 60), "ddp")}
    assert found["bandwidth"] == "overtaken"


def test_micro_batches_predicted_from_the_closed_form() -> None:
    found = {p.by: p for p in predictions(_scaled(108, 0, bubble=16), _scaled(100, 0), "ddp")}
    assert found["micro_batches"].outcome == "overtakes" and found["micro_batches"].factor == 8
    far = {p.by: p for p in predictions(_scaled(130, 0, bubble=16), _scaled(100, 0), "ddp")}
    assert far["micro_batches"].outcome == "never" and far["micro_batches"].factor == 16


def test_unknown_waiting_predicts_nothing() -> None:
    ledger = LedgerMean(
        step=1, ranks=1, step_ns=100, compute_ns=50, attributed_ns={Kind.ALL_REDUCE: 50}, attributed_by_axis_ns={},
        waiting_ns=None, copies_ns=0, bubble_ns=None, host_ns=0, busy_ns=50, overlapped_ns=0, residual_ns=None,
        bounds=False, flags=(),
    )  # fmt: skip
    assert ledger.transfer_ns is None
    assert scaled_ledger(ledger, 100.0, Fake("ddp").spec) is None
    assert Constraint.MEMORY == "memory_cap_mb"
