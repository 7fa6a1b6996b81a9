"""From the runs of a sweep to what the conditions report says of them."""

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from shardscope.measure.record import Environment, RunRecord
from shardscope.selection.decision import Decision
from shardscope.selection.node_predict import planned
from shardscope.selection.runs import run_of
from shardscope.selection.statistics import Interval, relative
from shardscope.selection.sweep import RATE, Axis, Point, Sweep
from shardscope.selection.sweep_claims import (
    AxisResult,
    ConditionsResult,
    Crossover,
    GridCell,
    GridResult,
    SweptPoint,
    SweptStrategy,
)
from shardscope.selection.sweep_compare import Measured, PointTimes, measured, point_times
from shardscope.selection.sweep_cross import Step, crossings, zero_between
from shardscope.selection.sweep_predict import Base, predicted_ns
from shardscope.selection.sweep_sentences import holds, statements

__all__ = ["analyse"]


def analyse(sweep: Sweep, decision: Decision, traces: Path) -> ConditionsResult:
    """Compare the strategies at every point and hold the rescaled ledgers of the base point against them.

    decision: of the base workload. traces: the folder with <workload>/<strategy>/run.json of all points. Raises
    ResultError for runs that are missing or of something else than their folder says.
    """
    found = _Sweep(sweep, decision, traces)
    axes = tuple(found.axis(axis) for axis in sweep.axes)
    unique = {point.workload: point for axis in axes if axis.parameter is None for point in axis.points}
    dates = [record.finished_at for records in found.records.values() for record in records.values()]
    rows = [row for point in unique.values() if not point.base for row in point.strategies]
    errors = [abs(row.error) for row in rows if row.error is not None]
    ratios = [abs(row.ratio_error) for row in rows if row.ratio_error is not None]
    judged = [p for p in unique.values() if not p.base and p.fastest is not None and p.predicted_fastest is not None]
    base = found.records[sweep.base.workload]
    return ConditionsResult(
        workload=sweep.base.spec,
        baseline=sweep.baseline,
        strategies=sweep.base.strategies,
        titles={name: record.strategy.display_name for name, record in base.items()},
        environment=decision.environment,
        measure=next(iter(sweep.points.values())).settings if sweep.points else sweep.base.settings,
        base_measure=sweep.base.settings,
        axes=axes,
        grid=found.grid(),
        holds=holds(decision.recommendation.name, list(unique.values())),
        first=min(dates),
        last=max(dates),
        median_error=statistics.median(errors) if errors else None,
        greatest_error=max(errors) if errors else None,
        median_ratio_error=statistics.median(ratios) if ratios else None,
        greatest_ratio_error=max(ratios) if ratios else None,
        right=sum(point.predicted_fastest in point.leaders for point in judged),
        judged=len(judged),
    )


class _Sweep:
    """All records, read once, and the base's ledgers."""

    def __init__(self, sweep: Sweep, decision: Decision, traces: Path) -> None:
        self.sweep, self.decision = sweep, decision
        self.records: dict[str, dict[str, RunRecord]] = {}
        for point in (sweep.base, *sweep.points.values()):
            self.records[point.workload] = {
                name: run_of(traces / point.workload / name, point.workload, name) for name in point.strategies
            }
        base = self.records[sweep.base.workload]
        self.asked = next((record for record in base.values() if record.environment is not None), None)
        self.times = {workload: self._times(workload) for workload in self.records}
        self.bases = self._bases()

    def axis(self, axis: Axis) -> AxisResult:
        """One factor, all its points."""
        points = [self._point(value, name, axis) for value, name in zip(axis.values, axis.workloads, strict=True)]
        places = list(zip(axis.values, axis.workloads, strict=True))
        # Where something has a time the rate was emulated: what does not apply there has a reason of its own.
        failed = [point for point in points if point.rate_mbit and point.fastest is None]
        reasons = [row.reason for point in failed for row in point.strategies if row.status == "not_applicable"]
        unchecked = next((reason for reason in reasons if reason), None) if axis.name == RATE else None
        own = next(value for value, name in places if name == self.sweep.base.workload)
        return AxisResult(
            name=axis.name,
            own=own,
            parameter=axis.parameter,
            points=tuple(points),
            crossovers=() if axis.parameter else tuple(self._crossovers(points)),
            statements=tuple(statements(self.decision, axis.name, places, self.times, self.bases)),
            unchecked=unchecked,
        )

    def grid(self) -> GridResult | None:
        """The leaders at every pair of two factors."""
        if self.sweep.grid is None:
            return None
        one, other = self.sweep.grid
        cells = []
        for (x, y), workload in self.sweep.grid_workloads.items():
            point = self._point(x, workload, one)
            cells.append(GridCell(x=x, y=y, leaders=point.leaders, predicted_fastest=point.predicted_fastest))
        return GridResult(x=one.name, y=other.name, cells=tuple(cells))

    def _times(self, workload: str) -> PointTimes:
        point, records, baseline = self.sweep.point(workload), self.records[workload], self.sweep.baseline
        runs = [measured(name, record, self.asked, point.settings.rate_mbit) for name, record in records.items()]
        usable = [records[run.name] for run in runs if run.status == "ok"]
        if point is self.sweep.base:
            # Measured against itself it says nothing new, unless it is wrong.
            runs = [run for run in runs if run.name != baseline or run.status != "ok"]
        # Where a parameter of the baseline is swept, the candidate of its name is another thing than the baseline.
        return point_times(baseline, runs, usable, takes_part=baseline not in point.parameters)

    def _bases(self) -> dict[str, Base]:
        workload = self.sweep.base.workload
        times, found = self.times[workload], {}
        for row in self.decision.strategies:
            record = self.records[workload].get(row.name)
            if record is None or row.ledger is None or times.clock_ns is None or times.interval(row.name) is None:
                continue
            step = times.clock_ns * math.exp(times.mean(row.name))
            found[row.name] = Base(ledger=row.ledger, record=record, step_ns=step)
        return found

    def _point(self, value: float | None, workload: str, axis: Axis) -> SweptPoint:
        point, times = self.sweep.point(workload), self.times[workload]
        base = point is self.sweep.base
        names = axis.strategies if axis.parameter else tuple(dict.fromkeys((*times.runs, *point.strategies)))
        names = tuple(name for name in self.sweep.base.strategies if name in names)
        rows = tuple(self._row(name, point, times, predict=not base and axis.parameter is None) for name in names)
        fastest, tied = times.fastest() if axis.parameter is None else (None, ())
        lead = self._lead(times, fastest)
        guesses = {row.name: row.predicted_ns for row in rows if row.predicted_ns is not None and row.timed}
        environment = self._environment(workload)
        return SweptPoint(
            workload=workload,
            value=value,
            base=base,
            strategies=rows,
            fastest=fastest,
            tied=tied,
            lead=None if lead is None else relative(lead.mean),
            lead_low=None if lead is None else relative(lead.low),
            lead_high=None if lead is None else relative(lead.high),
            predicted_fastest=min(guesses, key=lambda name: guesses[name]) if len(guesses) > 1 else None,
            rate_check=environment.rate_check if environment is not None else None,
            rate_mbit=point.settings.rate_mbit,
        )

    def _lead(self, times: PointTimes, fastest: str | None) -> Interval | None:
        """log(step of the next / step of the fastest)."""
        others = [name for name in times.contenders() if name != fastest]
        found = times.difference(others[0], fastest) if fastest is not None and others else None
        return found[0] if found is not None else None

    def _row(self, name: str, point: Point, times: PointTimes, *, predict: bool) -> SweptStrategy:
        run = times.runs.get(name, Measured(name, "missing"))
        interval = times.interval(name)
        if interval is None or times.clock_ns is None:
            return SweptStrategy(name=name, status=run.status, reason=run.reason)
        clock = times.clock_ns
        step = clock * math.exp(interval.mean)
        predicted = self._predicted(name, point) if predict else None
        exact = interval.count == 0
        base = self._predicted(self.sweep.baseline, point) if predict and not exact else None
        return SweptStrategy(
            name=name,
            status=run.status,
            log_ratio=interval.mean,
            log_low=interval.low,
            log_high=interval.high,
            log_floor=times.floor(name),
            pairs=interval.count,
            step_ns=step,
            step_low_ns=None if exact else clock * math.exp(interval.low),
            step_high_ns=None if exact else clock * math.exp(interval.high),
            predicted_ns=predicted,
            error=None if predicted is None else predicted / step - 1,
            ratio_error=predicted / base / math.exp(interval.mean) - 1 if predicted and base else None,
        )

    def _predicted(self, name: str, point: Point) -> float | None:
        """By the base's ledger. The baseline has no run of its own at a point: its plan follows from the sizes."""
        records, base = self.records[point.workload], self.bases.get(name)
        if base is None:
            return None
        if name in records:
            return predicted_ns(base, records[name], records[name].plan)
        there = next((record for record in records.values() if record.timing is not None), None)
        if there is None or there.environment is None:
            return None
        plan = planned(there.workload, name, base.record.strategy.parameters, there.environment.world_size)
        return None if isinstance(plan, str) else predicted_ns(base, there, plan)

    def _environment(self, workload: str) -> Environment | None:
        found = (record.environment for record in self.records[workload].values())
        return next((environment for environment in found if environment is not None), None)

    def _crossovers(self, points: Sequence[SweptPoint]) -> Iterator[Crossover]:
        """First those of strategies that lead somewhere."""
        leading = {name for point in points for name in point.leaders}
        pairs = combinations(self.sweep.base.strategies, 2)
        for one, other in sorted(pairs, key=lambda pair: not leading.issuperset(pair)):
            steps = [step for point in points if (step := self._step(point, one, other)) is not None]
            guessed = [step for point in points if (step := _guessed(point, one, other)) is not None]
            for crossing in crossings(steps):
                predicted = zero_between(guessed, lambda step: step.mean)
                estimate = crossing.estimate
                yield Crossover(
                    below=one if crossing.rising else other,
                    above=other if crossing.rising else one,
                    low=crossing.low,
                    high=crossing.high,
                    estimate=estimate,
                    predicted=predicted,
                    error=predicted / estimate - 1 if predicted is not None and estimate else None,
                    leads=leading.issuperset((one, other)),
                )

    def _step(self, point: SweptPoint, one: str, other: str) -> Step | None:
        found = self.times[point.workload].difference(one, other)
        if found is None:
            return None
        return Step(point.value, found[0].mean, found[0].low, found[0].high, found[1])


def _guessed(point: SweptPoint, one: str, other: str) -> Step | None:
    """log of the ratio of predicted steps; at the base, where the prediction starts, of the measured ones."""
    rows = point.strategy(one), point.strategy(other)
    found = [None if row is None else row.step_ns if point.base else row.predicted_ns for row in rows]
    if found[0] is None or found[1] is None:
        return None
    log = math.log(found[0] / found[1])
    return Step(point.value, log, log, log, 0.0)
