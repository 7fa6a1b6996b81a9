"""The tables of the conditions report: cells are sentences, so both languages print the same numbers."""

import math
from collections.abc import Sequence
from typing import Any

from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.comparison import judge
from shardscope.selection.rescale import LARGEST_FACTOR
from shardscope.selection.statistics import Interval, relative
from shardscope.selection.sweep_claims import (
    AxisResult,
    ConditionsResult,
    GridResult,
    Statement,
    SweptPoint,
    SweptStrategy,
)
from shardscope.selection.terms import Verdict

__all__ = ["axis_table", "grid_table", "parameter_table", "shown_value", "statement_rows"]

Table = tuple[Sequence[Any], Sequence[Sequence[Any]]]


def shown_value(value: float | None) -> Sentence:
    """A value of a factor; None is the machine's own rate."""
    return (
        sentence("conditions.value.own") if value is None else sentence("conditions.value.number", value=float(value))
    )


def axis_table(axis: AxisResult) -> Table:
    """Per value: the fastest, by how much, then every strategy's step, measured and predicted."""
    names = list(dict.fromkeys(row.name for point in axis.points for row in point.strategies))
    header = [
        sentence("conditions.column.value", name=axis.name),
        sentence("conditions.column.fastest"),
        sentence("conditions.column.predicted_fastest"),
        *(sentence("conditions.column.strategy", name=name) for name in names),
    ]
    rows = []
    for point in axis.points:
        cells: list[Sentence] = [
            sentence("conditions.cell.value", value=shown_value(point.value), base=point.base),
            sentence("conditions.cell.fastest", point=point, floor=_floor(point)),
            sentence("conditions.cell.predicted_fastest", point=point),
        ]
        cells += [_step(point.strategy(name), point.base) for name in names]
        rows.append(cells)
    return header, rows


def parameter_table(axis: AxisResult, baseline: str) -> Table:
    """Per value of one strategy's parameter: its step, and the change against the baseline timed in the same job."""
    header = [
        sentence("conditions.column.value", name=axis.name),
        sentence("conditions.column.step"),
        sentence("conditions.column.clock", baseline=baseline),
        sentence("conditions.column.change", baseline=baseline),
    ]
    rows = []
    for point in axis.points:
        row = point.strategies[0]
        rows.append(
            [
                sentence("conditions.cell.value", value=shown_value(point.value), base=point.base),
                _step(row, True),
                sentence("conditions.cell.clock", ns=_clock(row)),
                sentence("conditions.cell.change", change=_change(row), claim=_claim(row)),
            ]
        )
    return header, rows


def grid_table(grid: GridResult) -> Table:
    """The fastest at every pair of values: one row per value of the first factor."""
    columns = list(dict.fromkeys(cell.y for cell in grid.cells))
    header = [
        sentence("conditions.column.value", name=grid.x),
        *(sentence("conditions.column.other", name=grid.y, value=shown_value(value)) for value in columns),
    ]
    rows = []
    for x in dict.fromkeys(cell.x for cell in grid.cells):
        found = {cell.y: cell for cell in grid.cells if cell.x == x}
        cells = [sentence("conditions.cell.grid", cell=found[y]) for y in columns]
        rows.append([sentence("conditions.cell.value", value=shown_value(x), base=False), *cells])
    return header, rows


def statement_rows(result: ConditionsResult) -> Table | None:
    """The summary's predictions about swept factors, each with its verdict. None: it makes none."""
    found = [(axis, statement) for axis in result.axes for statement in axis.statements]
    if not found:
        return None
    header = [sentence(f"conditions.column.{key}") for key in ("statement", "place", "verdict", "because")]
    batch = result.workload.global_batch
    return header, [
        [
            _said(statement, batch),
            sentence(f"conditions.place.{statement.source}"),
            sentence(f"conditions.verdict.{statement.verdict}"),
            _because(statement, axis),
        ]
        for axis, statement in found
    ]


def _said(statement: Statement, batch: int) -> Sentence:
    """The words of the summary."""
    prediction = statement.prediction
    if prediction is None:
        words = sentence("change.no_crossover", names=[statement.name], factor=LARGEST_FACTOR, tied=False)
        return sentence("conditions.said", name=statement.against, words=words)
    words = sentence(f"predicted.{prediction.by}", prediction=prediction, batch=round((prediction.factor or 0) * batch))
    return sentence("conditions.said", name=statement.name, words=words)


def _because(statement: Statement, axis: AxisResult) -> Sentence:
    if statement.why is not None:
        return sentence(f"conditions.why.{statement.why}", statement=statement)
    value = shown_value(statement.seen_at)
    return sentence("conditions.because", statement=statement, value=value, axis=axis.name)


def _step(row: SweptStrategy | None, base: bool) -> Sentence:
    if row is None:
        return sentence("conditions.cell.none")
    if not row.timed:
        return sentence("conditions.cell.status", status=sentence(f"conditions.status.{row.status}"))
    return sentence("conditions.cell.step", row=row, base=base)


def _clock(row: SweptStrategy) -> float | None:
    """The baseline's step in the job of `row`. None: it is the baseline, or nothing was timed."""
    known = row.pairs and row.step_ns is not None and row.log_ratio is not None
    return row.step_ns / math.exp(row.log_ratio) if known else None  # type: ignore[operator, arg-type]


def _floor(point: SweptPoint) -> float:
    """The widest noise floor of those that lead."""
    return relative(max((row.log_floor for row in point.strategies if row.name in point.leaders), default=0.0))


def _change(row: SweptStrategy) -> tuple[float, float, float] | None:
    """Relative step time against the baseline in the same job, with its interval. None: it is the baseline."""
    if row.log_ratio is None or row.log_low is None or row.log_high is None or row.pairs == 0:
        return None
    return relative(row.log_ratio), relative(row.log_low), relative(row.log_high)


def _claim(row: SweptStrategy) -> str:
    """ "faster", "slower" or "same", as in the summary: beyond the interval and the noise floor."""
    if row.log_ratio is None or row.log_low is None or row.log_high is None:
        return "same"
    verdict = judge(Interval(row.log_ratio, row.log_low, row.log_high, row.pairs), row.log_floor)
    return {Verdict.BETTER: "faster", Verdict.WORSE: "slower"}.get(verdict, "same")
