"""Order by speed or, where times are no evidence, by memory; a tie inside the noise is a tie."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardscope.selection.claims import Change, StrategyResult
from shardscope.selection.comparison import Side, rate_change, relative_time
from shardscope.selection.terms import Standing, Verdict

__all__ = ["Order"]


@dataclass(frozen=True)
class Order:
    """Compares strategies of one workload with each other.

    by "memory": times of at least half of the eligible strategies are no evidence, so nothing is ranked by them.
    """

    sides: Mapping[str, Side]
    rows: Mapping[str, StrategyResult]
    base: str | None

    @property
    def by(self) -> str:
        """ "throughput" or "memory"."""
        eligible = [row for row in self.rows.values() if row.standing is Standing.ELIGIBLE]
        timed = [row for row in eligible if row.time_evidence]
        return "throughput" if eligible and 2 * len(timed) > len(eligible) else "memory"

    @property
    def no_time_reason(self) -> str | None:
        """The commonest reason why times are no evidence, when nothing is ranked by them."""
        if self.by == "throughput":
            return None
        reasons = [r.no_time_reason for r in self.rows.values() if r.no_time_reason and r.standing is Standing.ELIGIBLE]
        return Counter(reasons).most_common(1)[0][0] if reasons else None

    def rankable(self, names: Sequence[str]) -> list[str]:
        """Those that can be ranked, best first."""
        if self.by == "memory":
            return sorted((n for n in names if self.peak(n) is not None), key=lambda n: self.peak(n) or math.inf)
        return sorted((n for n in names if self.rows[n].time_evidence), key=self._time)

    def walk(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """(strategy, choice once it fits) from the lowest peak up: one that needs more memory must be faster.

        One that is too noisy to rank is chosen only while nothing else fits.
        """
        steps: list[tuple[str, str]] = []
        for name in sorted((n for n in names if self.peak(n) is not None), key=lambda n: self.peak(n) or 0.0):
            steps.append((name, name if not steps or self._replaces(name, steps[-1][1]) else steps[-1][1]))
        return steps

    def _replaces(self, name: str, choice: str) -> bool:
        if self.by == "memory" or not self.rows[name].time_evidence:
            return False
        return not self.rows[choice].time_evidence or self.faster(name, choice)

    def choose(self, names: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
        """(choice, all that are tied with it, itself included); among equals the one that needs least memory."""
        steps = self.walk(names)
        if not steps:
            return None, ()
        choice = steps[-1][1]
        tied = (name for name in self.rankable(names) if name != choice and self.tied(name, choice))
        return choice, (choice, *tied)

    def tied(self, one: str, other: str) -> bool:
        """No difference can be claimed, in speed or (by memory) in peaks."""
        if self.by == "memory":
            return not self.needs_less(one, other) and not self.needs_less(other, one)
        change = self.change(one, other)
        return change is not None and change.verdict is Verdict.WITHIN_NOISE

    def change(self, one: str, other: str) -> Change | None:
        """Throughput of `one` against `other`."""
        return rate_change(self.sides[one], self.sides[other])

    def faster(self, one: str, other: str) -> bool:
        """Beyond the noise."""
        change = self.change(one, other)
        return change is not None and change.verdict is Verdict.BETTER

    def peak(self, name: str) -> float | None:
        """Peak bytes of the fullest rank."""
        return self.rows[name].peak_bytes.value

    def needs_less(self, one: str, other: str) -> bool:
        """A lower peak, by more than both residues."""
        mine, theirs = self.rows[one].peak_bytes, self.rows[other].peak_bytes
        if mine.value is None or theirs.value is None:
            return False
        return theirs.value - mine.value > (mine.error or 0) + (theirs.error or 0)

    def _time(self, name: str) -> float:
        """Step time relative to the base, as a logarithm."""
        if self.base is None or name == self.base:
            return 0.0
        found = relative_time(self.sides[name], self.sides[self.base])
        return math.inf if found is None else found[0].mean
