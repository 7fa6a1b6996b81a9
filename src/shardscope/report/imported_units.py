"""Times, numbers and ranks as the reports on imported runs print them, in both languages."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from shardscope.report.markdown import MINUS

__all__ = ["Unit", "fixed", "rank_list", "span", "unit_of"]

_MOST_DIGITS = 4


@dataclass(frozen=True)
class Unit:
    """The unit of all times in one document, and the decimals of times that have to add up."""

    name: str
    ns: float
    digits: int

    def of(self, ns: float) -> float:
        """Nanoseconds in this unit."""
        return ns / self.ns

    def fixed(self, ns: float) -> Markup:
        """Nanoseconds as a number of this unit with the decimals of the step."""
        return fixed(self.of(ns), self.digits)

    def show(self, ns: float) -> Markup:
        """Nanoseconds as a number of this unit with three significant digits."""
        value = self.of(ns)
        if not value:
            return Markup("0")
        return fixed(value, min(max(2 - math.floor(math.log10(abs(value))), 0), _MOST_DIGITS))

    def told(self, ns: float, residual_ns: int | None) -> Markup:
        """The same of a time that rests on several ranks' clocks: nothing below their disagreement is claimed."""
        residual = residual_ns or 0
        return Markup("< ") + self.show(residual) if ns < residual else self.show(ns)


def unit_of(ns: float) -> Unit:
    """The unit and decimals in which a step has four significant digits, from 10 µs to 1000 s."""
    for name, size, least, digits in (
        ("s", 1e9, 1e10, 2), ("ms", 1e6, 1e8, 1), ("ms", 1e6, 1e7, 2), ("µs", 1e3, 1e6, 0), ("µs", 1e3, 1e5, 1),
    ):  # fmt: skip
        if ns >= least:
            return Unit(name, size, digits)
    return Unit("µs", 1e3, 2)


def span(ns: float) -> Markup:
    """One time by itself, with its unit."""
    size = abs(ns)
    unit = Unit("s", 1e9, 2) if size >= 1e9 else Unit("ms", 1e6, 2) if size >= 1e6 else Unit("µs", 1e3, 2)
    return unit.show(ns) + Markup(f" {unit.name}")


def fixed(value: float, digits: int = 1) -> Markup:
    """A number with thousands separated and a true minus sign."""
    return Markup(f"{value:,.{digits}f}".replace("-", MINUS))


def rank_list(ranks: Iterable[int]) -> str:
    """0–3, 7."""
    runs = []
    for _, found in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in found]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}–{members[-1]}")
    return ", ".join(runs)
