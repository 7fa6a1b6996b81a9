"""Where two strategies change places along an axis, and how sure that is.

Between measured points the logarithm of the ratio of step times is taken as linear in the logarithm of the factor. A
crossover is stated only where one strategy is faster beyond the noise at one point, the other at a later one; its
interval runs from where the band (the 95 % interval, widened to the noise floor) reaches zero to where it leaves it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Crossing", "Step", "crossings", "zero_between"]


@dataclass(frozen=True)
class Step:
    """log(step of one / step of another) at one value. value None: the machine's own rate, beyond all others."""

    value: float | None
    mean: float
    low: float
    high: float
    floor: float

    @property
    def band(self) -> tuple[float, float]:
        """The interval, widened to the noise floor around the mean."""
        return min(self.low, self.mean - self.floor), max(self.high, self.mean + self.floor)

    @property
    def claim(self) -> int:
        """−1: the first is faster beyond the noise, 1: the other, 0: neither."""
        low, high = self.band
        return -1 if high < 0 else 1 if low > 0 else 0


@dataclass(frozen=True)
class Crossing:
    """rising: the first strategy is faster below. estimate, high None: between `low` and the machine's own rate."""

    rising: bool
    low: float
    high: float | None
    estimate: float | None


def crossings(steps: Sequence[Step]) -> list[Crossing]:
    """All crossovers, in ascending order. `steps`: by value, ascending."""
    found = []
    last: int | None = None
    for index, step in enumerate(steps):
        if step.claim == 0:
            continue
        if last is not None and steps[last].claim != step.claim:
            found.append(_crossing(steps[last : index + 1], rising=step.claim > 0))
        last = index
    return found


def zero_between(steps: Sequence[Step], of: Callable[[Step], float], *, last: bool = False) -> float | None:
    """The first (or last) value at which the piecewise linear `of` is zero; None: none, or beyond finite values."""
    found = []
    for one, two in pairwise(steps):
        a, b = of(one), of(two)
        if a == b or (a > 0) == (b > 0):
            continue
        found.append(_between(one.value, two.value, a / (a - b)))
    if not found:
        return None
    return found[-1] if last else found[0]


def _crossing(steps: Sequence[Step], *, rising: bool) -> Crossing:
    """`steps`: from the last claim of one sign to the first of the other."""
    sign = 1 if rising else -1

    def mean(step: Step) -> float:
        return sign * step.mean

    def early(step: Step) -> float:
        return max(sign * edge for edge in step.band)

    def late(step: Step) -> float:
        return min(sign * edge for edge in step.band)

    low = zero_between(steps, early)
    lower = next(step.value for step in reversed(steps[:-1]) if step.value is not None)
    return Crossing(
        rising=rising,
        low=lower if low is None else low,
        high=zero_between(steps, late, last=True),
        estimate=zero_between(steps, mean),
    )


def _between(one: float | None, two: float | None, share: float) -> float | None:
    """Between two values on a logarithmic scale (linear where one is not positive)."""
    if one is None or two is None:
        return None
    if one <= 0 or two <= 0:
        return one + share * (two - one)
    return math.exp(math.log(one) + share * (math.log(two) - math.log(one)))
