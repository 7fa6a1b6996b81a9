"""The statistics behind every verdict: Student-t intervals on logarithms of times, the noise floor from A against A′.

Ratios of times are compared as logarithms, where "twice as fast" and "half as fast" lie equally far from "the same".
All functions here take and return natural logarithms; `relative` turns one into a relative difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

__all__ = [
    "CONFIDENCE",
    "Interval",
    "floor_of",
    "pair_logs",
    "percentile",
    "relative",
    "student",
    "triple_logs",
    "welch",
]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided 95 % interval. `low`, `high` are infinite when fewer than two values were given."""

    mean: float
    low: float
    high: float
    count: int

    def __neg__(self) -> "Interval":
        return Interval(-self.mean, -self.high, -self.low, self.count)


def relative(log: float) -> float:
    """A logarithm of a ratio as relative difference: 0.095 → 0.0997."""
    return math.expm1(log)


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile with linear interpolation; `share` in [0, 1], at least one value."""
    return float(np.quantile(np.asarray(values, dtype=float), share))


def student(values: Sequence[float]) -> Interval:
    """Student-t interval of the mean (n−1 degrees of freedom)."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    half = _quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def welch(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Interval of mean(first) − mean(second) for independent samples (Welch–Satterthwaite degrees of freedom)."""
    one, two = len(first), len(second)
    mean = math.fsum(first) / one - math.fsum(second) / two
    if one < 2 or two < 2:
        return Interval(mean, -math.inf, math.inf, min(one, two))
    a, b = float(np.var(first, ddof=1)) / one, float(np.var(second, ddof=1)) / two
    if a + b == 0:
        return Interval(mean, mean, mean, min(one, two))
    freedom = (a + b) ** 2 / (a**2 / (one - 1) + b**2 / (two - 1))
    half = _quantile(freedom) * math.sqrt(a + b)
    return Interval(mean, mean - half, mean + half, min(one, two))


def triple_logs(triples: Sequence[tuple[int, int, int]]) -> tuple[list[float], list[float]]:
    """(A, B, A′) times → log(B / geometric mean of A and A′) and log(A′ / A), one of each per triple."""
    change = [math.log(b) - (math.log(a) + math.log(again)) / 2 for a, b, again in triples]
    noise = [math.log(again) - math.log(a) for a, _, again in triples]
    return change, noise


def pair_logs(base: Sequence[int], other: Sequence[int]) -> list[float]:
    """log(other / base) of times measured in turn."""
    return [math.log(b) - math.log(a) for a, b in zip(base, other, strict=True)]


def floor_of(noise: Interval) -> float:
    """The largest difference that the noise interval of two equal things still contains."""
    return max(abs(noise.low), abs(noise.high))


def _quantile(freedom: float) -> float:
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
