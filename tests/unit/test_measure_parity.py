"""Agreement with `single`: what counts as equal, and what must not pass."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from shardscope.errors import MeasurementError
from shardscope.measure.parity import gradient_errors, judge, loss_error
from shardscope.measure.reference import Reference, load_reference, save_reference
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="tiny", layers=1, hidden=8, heads=1, sequence_length=8, global_batch=4, micro_batches=2)
WEIGHT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
REFERENCE = {"weight": WEIGHT, "key.bias": np.full(8, 1e-10, dtype=np.float32)}


def test_a_key_bias_may_hold_rounding_noise() -> None:
    noise = np.full(8, -1e-9, dtype=np.float32)
    errors = gradient_errors([("weight", WEIGHT), ("key.bias", noise)], REFERENCE)
    everything = math.sqrt(float((WEIGHT.astype(float) ** 2).sum()) + 8e-20)
    expected = math.sqrt(8) * 1.1e-9 / (1e-4 * everything / math.sqrt(2))
    assert errors["weight"] == 0
    assert errors["key.bias"] == pytest.approx(expected, rel=1e-5)
    assert errors["key.bias"] < 1e-4, "the plain ratio would be 11"


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        pytest.param(2 * WEIGHT, 1.0, id="scaled"),
        pytest.param(0 * WEIGHT, 1.0, id="zero"),
        pytest.param(np.where(np.arange(8)[:, None] < 4, WEIGHT, 0), math.sqrt(0.5), id="a shard skipped"),
        pytest.param(WEIGHT[:4], math.inf, id="another shape"),
        pytest.param(np.full_like(WEIGHT, np.nan), math.inf, id="not a number"),
        pytest.param(None, math.inf, id="missing"),
    ],
)
def test_a_wrong_gradient_fails_though_losses_agree(weight: np.ndarray | None, error: float) -> None:
    errors = gradient_errors([("weight", weight), ("key.bias", REFERENCE["key.bias"])], REFERENCE)
    assert errors["weight"] == pytest.approx(error, rel=0.02)
    parity = judge(errors, (2.0, 1.0), (2.0, 1.0), "float32")
    assert not parity.passed
    assert parity.worst_parameter == "weight"
    assert parity.gradient_error <= sys.float_info.max, "JSON has no infinity"


def test_gradients_that_never_came_or_are_unknown_fail() -> None:
    assert gradient_errors([("weight", WEIGHT)], REFERENCE)["key.bias"] == math.inf
    unknown = gradient_errors([*REFERENCE.items(), ("extra", WEIGHT)], REFERENCE)
    assert unknown["extra"] == math.inf


@pytest.mark.parametrize(
    ("losses", "passed"),
    [
        ((5.0, 4.0, 3.0), True),
        ((5.0, 4.0, 3.0 * (1 + 9e-6)), True),
        ((5.0, 4.0, 3.0 * (1 + 2e-5)), False),
        ((5.0, 4.0), False),
        ((5.0, 4.0, math.nan), False),
    ],
)
def test_losses_within_tolerance(losses: tuple[float, ...], passed: bool) -> None:
    parity = judge({"weight": 0.0}, losses, (5.0, 4.0, 3.0), "float32")
    assert parity.passed is passed
    assert loss_error((), ()) == math.inf


def test_reference_survives_the_file_and_refuses_another_workload(tmp_path: Path) -> None:
    path = tmp_path / "reference.npz"
    save_reference(path, Reference(spec=SPEC, gradients=REFERENCE, losses=(3.0, 2.0, 1.0)))
    loaded = load_reference(path, SPEC, 2)
    assert loaded.losses == (3.0, 2.0)
    np.testing.assert_array_equal(loaded.gradients["weight"], WEIGHT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["reference.npz"]
    other = WorkloadSpec(
        name="tiny", layers=1, hidden=8, heads=1, sequence_length=8, global_batch=4, micro_batches=2, seed=5
    )
    with pytest.raises(MeasurementError, match="another definition"):
        load_reference(path, other, 2)
    with pytest.raises(MeasurementError, match="4 losses are wanted"):
        load_reference(path, SPEC, 4)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(MeasurementError, match="not a usable reference"):
        load_reference(path, SPEC, 2)
    with pytest.raises(MeasurementError, match="not a usable reference"):
        load_reference(tmp_path / "absent.npz", SPEC, 2)
