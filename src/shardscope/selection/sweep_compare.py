"""One point of a sweep: who is fastest there, with the same rules as in the summary.

Every job times the baseline in turn with its candidate, so log(candidate / baseline) is free of drift. Two candidates
are compared through it (Welch), and a difference is claimed only beyond the interval and the noise floor.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardscope.measure.record import RunRecord
from shardscope.selection.audit import passes_gate
from shardscope.selection.comparison import candidate_times, judge, noise_of
from shardscope.selection.statistics import Interval, student, triple_logs, welch
from shardscope.selection.terms import Verdict
from shardscope.vocabulary import Status

__all__ = ["Measured", "PointTimes", "measured", "point_times"]


@dataclass(frozen=True)
class Measured:
    """What one run says. `logs`: step times against the baseline, or in ns where it ran alone."""

    name: str
    status: str
    reason: str | None = None
    logs: tuple[float, ...] = ()
    paired: bool = False
    floor: float = 0.0


@dataclass(frozen=True)
class PointTimes:
    """The runs of one point on one clock. `clock_ns`: the baseline's median step in all jobs; None: it never ran."""

    runs: Mapping[str, Measured]
    clock_ns: float | None

    def contenders(self) -> list[str]:
        """Strategies with step times, fastest first."""
        found = [name for name in self.runs if self.interval(name) is not None]
        return sorted(found, key=lambda name: self.mean(name))

    def mean(self, name: str) -> float:
        """log(step / clock); infinite without one."""
        found = self.interval(name)
        return math.inf if found is None else found.mean

    def interval(self, name: str) -> Interval | None:
        """log(step / clock) with its interval: exactly 0 for the baseline, which is the clock."""
        if self._is_clock(name):
            return Interval(0.0, 0.0, 0.0, 0)
        logs = self._logs(name)
        return student(logs) if logs else None

    def floor(self, name: str) -> float:
        """Its noise floor as a logarithm."""
        return 0.0 if self._is_clock(name) else self.runs[name].floor

    def difference(self, one: str, other: str) -> tuple[Interval, float] | None:
        """log(step of one / step of other), and the floor below which nothing is claimed."""
        mine, theirs = self.interval(one), self.interval(other)
        if mine is None or theirs is None:
            return None
        floor = math.hypot(self.floor(one), self.floor(other))
        if mine.count == 0:
            return -theirs, floor
        if theirs.count == 0:
            return mine, floor
        return welch(self._logs(one), self._logs(other)), floor

    def claim(self, one: str, other: str) -> int:
        """−1: `one` is faster beyond the noise, 1: slower, 0: neither can be said."""
        found = self.difference(one, other) if one != other else None
        return 0 if found is None else {Verdict.BETTER: -1, Verdict.WORSE: 1}.get(judge(*found), 0)

    def fastest(self) -> tuple[str | None, tuple[str, ...]]:
        """(the fastest, those that are tied with it)."""
        order = self.contenders()
        if not order:
            return None, ()
        best = order[0]
        return best, tuple(name for name in order[1:] if self.claim(best, name) == 0)

    def _is_clock(self, name: str) -> bool:
        run = self.runs.get(name)
        return run is not None and run.status == "baseline" and self.clock_ns is not None

    def _logs(self, name: str) -> list[float]:
        run = self.runs.get(name)
        if run is None or run.status != "ok" or not run.logs:
            return []
        if run.paired:
            return list(run.logs)
        return [log - math.log(self.clock_ns) for log in run.logs] if self.clock_ns else list(run.logs)


def measured(name: str, record: RunRecord | None, asked: RunRecord | None, rate_mbit: float | None) -> Measured:
    """Judge one run. `asked`: a run of the base point, whose ranks, device and backend it must share."""
    if record is None:
        return Measured(name, "missing")
    if record.status is not Status.OK:
        return Measured(name, str(record.status), record.reason)
    if record.parity is None or not passes_gate(record.parity):
        error = "not measured" if record.parity is None else f"{record.parity.gradient_error:.1e}"
        return Measured(name, "disqualified", f"gradient error {error}")
    different = _different(record, asked, rate_mbit)
    if different:
        return Measured(name, "incomparable", different)
    noise, times = noise_of(record), candidate_times(record)
    oversubscribed = record.environment is not None and record.environment.oversubscribed
    if noise is None or not times or record.timing is None or oversubscribed:
        return Measured(name, "no_time", "more ranks than cores" if oversubscribed else None)
    paired = bool(record.timing.triples)
    logs = triple_logs(record.timing.triples)[0] if paired else [math.log(ns) for ns in times]
    return Measured(name, "ok", None, tuple(logs), paired, math.log1p(noise.floor))


def point_times(
    baseline: str, runs: Iterable[Measured], records: Iterable[RunRecord], *, takes_part: bool = True
) -> PointTimes:
    """All runs of a point on the clock of the baseline, which is one of them if it takes part."""
    steps = [
        ns
        for record in records
        if record.timing is not None and record.timing.baseline == baseline
        for first, _, again in record.timing.triples
        for ns in (first, again)
    ]
    found = {run.name: run for run in runs}
    if takes_part:
        found.setdefault(baseline, Measured(baseline, "baseline"))
    return PointTimes(found, float(statistics.median(steps)) if steps else None)


def _different(record: RunRecord, asked: RunRecord | None, rate_mbit: float | None) -> str | None:
    here, there = record.environment, asked.environment if asked is not None else None
    found = []
    if here is not None and here.rate_mbit != rate_mbit:
        found.append(f"rate {here.rate_mbit or 'own'} Mbit/s, asked for {rate_mbit or 'own'}")
    if here is not None and there is not None:
        for field in ("world_size", "device", "backend"):
            one, two = getattr(here, field), getattr(there, field)
            if one != two:
                found.append(f"{field} {one}, at the base {two}")
    return "; ".join(found) or None
