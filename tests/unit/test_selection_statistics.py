"""Intervals on synthetic times with known truth, and the verdicts drawn from them."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardscope.selection.statistics import (
    floor_of,
    pair_logs,
    percentile,
    relative,
    student,
    triple_logs,
    welch,
)

TRIALS = 2000


def _triples(rng: random.Random, ratio: float, sigma: float, drift: float) -> list[tuple[int, int, int]]:
    """25 triples of a baseline of 100 ms and a candidate of `ratio` times that; `drift` per single step."""
    found = []
    for index in range(25):
        times = [
            100e6 * scale * math.exp(rng.gauss(0, sigma) + drift * (3 * index + place))
            for place, scale in enumerate((1.0, ratio, 1.0))
        ]
        found.append((int(times[0]), int(times[1]), int(times[2])))
    return found


@pytest.mark.parametrize(("ratio", "sigma", "drift"), [(1.0, 0.05, 0.0), (1.3, 0.1, 0.0), (0.8, 0.03, 0.004)])
def test_interval_covers_the_true_change_in_95_percent(ratio: float, sigma: float, drift: float) -> None:
    """Drift of 0.4 % per step, 30 % over the run, must not matter: A and A′ lie on both sides of B."""
    rng = random.Random(7)
    inside = 0
    for _ in range(TRIALS):
        interval = student(triple_logs(_triples(rng, ratio, sigma, drift))[0])
        inside += interval.low <= math.log(ratio) <= interval.high
    assert 0.92 <= inside / TRIALS <= 0.98


def test_a_against_a_covers_zero_in_95_percent() -> None:
    rng = random.Random(8)
    intervals = [student(triple_logs(_triples(rng, 1.5, 0.08, 0.0))[1]) for _ in range(TRIALS)]
    inside = sum(interval.low <= 0 <= interval.high for interval in intervals)
    assert 0.92 <= inside / TRIALS <= 0.98
    # The floor is what the noise looks like: at least the half width of its interval.
    assert all(floor_of(i) >= (i.high - i.low) / 2 - 1e-12 for i in intervals)


def test_welch_covers_the_difference_of_two_runs_with_unequal_noise() -> None:
    rng = random.Random(9)
    inside = 0
    for _ in range(TRIALS):
        one = triple_logs(_triples(rng, 1.2, 0.02, 0.0))[0]
        two = triple_logs(_triples(rng, 1.1, 0.12, 0.0))[0]
        interval = welch(one, two)
        inside += interval.low <= math.log(1.2 / 1.1) <= interval.high
    assert 0.92 <= inside / TRIALS <= 0.98


def test_student_against_a_hand_computed_interval() -> None:
    """n = 4, mean 2, s = √(2/3), t(3) = 3.182446: half width 1.29923."""
    interval = student([1.0, 2.0, 2.0, 3.0])
    assert interval.mean == pytest.approx(2.0)
    assert interval.high - interval.mean == pytest.approx(3.182446 * math.sqrt(2 / 3) / 2, rel=1e-6)
    assert (-interval).low == pytest.approx(-interval.high)


def test_one_value_says_nothing_about_its_spread() -> None:
    assert student([1.0]).high == math.inf
    assert welch([1.0], [1.0, 2.0]).low == -math.inf


def test_equal_constant_samples_have_a_point_interval() -> None:
    assert welch([2.0, 2.0], [1.0, 1.0]) == welch([2.0, 2.0, 2.0], [1.0, 1.0]).__class__(1.0, 1.0, 1.0, 2)


@given(st.floats(-3, 3))
def test_relative_is_the_ratio_minus_one(log: float) -> None:
    assert relative(log) == pytest.approx(math.exp(log) - 1)


def test_logs_are_signed_as_later_over_earlier() -> None:
    change, noise = triple_logs([(100, 200, 100), (100, 100, 400)])
    assert change == pytest.approx([math.log(2), math.log(0.5)])
    assert noise == pytest.approx([0, math.log(4)])
    assert pair_logs([100], [150]) == pytest.approx([math.log(1.5)])
    assert percentile([1, 2, 3, 4, 5], 0.95) == pytest.approx(4.8)
