"""The conditions report: one context in two languages, one figure and one table per factor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from shardscope.errors import ResultError
from shardscope.report.conditions_figures import Line, curves, place
from shardscope.report.conditions_tables import (
    axis_table,
    grid_table,
    parameter_table,
    shown_value,
    statement_rows,
)
from shardscope.report.figure_set import stem_of
from shardscope.report.figures import Drawing, Words
from shardscope.report.publish import publish
from shardscope.report.sentences import LANGUAGES, Language, Sentence, sentence
from shardscope.selection.decision import Decision
from shardscope.selection.sweep_claims import AxisResult, ConditionsResult, SweptPoint, load

__all__ = ["Swept", "render_conditions", "swept"]

FILES = {"en": "conditions.md", "zh": "conditions.zh.md"}
FIGURES = "conditions"
RATE_TOLERANCE = 0.05  # of an emulated rate


def render_conditions(result_file: Path, output_dir: Path) -> None:
    """Write conditions.md, conditions.zh.md and conditions/*.svg into `output_dir`, all or none of them.

    Raises ResultError when the result cannot be read or the report cannot be written.
    """
    result = load(result_file)
    languages = [Language(name) for name in LANGUAGES]
    words = Words(languages[0], languages[1])
    figures = {_file(axis): figure(axis, result, words) for axis in result.axes}
    documents = {FILES[language.name]: language.render("conditions.md.j2", **context(result)) for language in languages}
    publish(documents, figures, FIGURES, output_dir)


@dataclass(frozen=True)
class Swept:
    """One factor for summary.html: what it is, its drawing, its crossovers."""

    title: Sentence
    drawing: Drawing
    crossovers: list[Sentence]


def swept(result_file: Path, decisions: Sequence[Decision], languages: Sequence[Language]) -> dict[str, list[Swept]]:
    """Workload → its factors, where conditions were measured for just that workload; else nothing.

    A result that cannot be read is as good as none here: the sweep is made on demand, and its own report says why.
    """
    try:
        result = load(result_file)
    except ResultError:
        return {}
    if all(decision.workload != result.workload for decision in decisions):
        return {}
    found = []
    for axis in result.axes:
        words = Words(languages[0], languages[1])
        svg = figure(axis, result, words)
        title = sentence(f"conditions.axis.{'parameter' if axis.parameter is not None else axis.name}", name=axis.name)
        drawing = Drawing(f"conditions-{stem_of(axis.name, ())}", svg, "", words.found)
        found.append(Swept(title, drawing, _crossovers(axis)))
    return {result.workload.name: found}


def context(result: ConditionsResult) -> dict[str, Any]:
    """Everything the template says, as sentences and tables."""
    return {
        "setting": _setting(result),
        "short": _short(result),
        "axes": [_axis(axis, result) for axis in result.axes],
        "grid": grid_table(result.grid) if result.grid is not None else None,
        "grid_names": (result.grid.x, result.grid.y) if result.grid is not None else None,
        "statements": statement_rows(result),
        "limits": _limits(result),
    }


def _setting(result: ConditionsResult) -> list[Sentence]:
    environment = result.environment
    found = [
        sentence("conditions.setting.base", spec=result.workload, names=result.strategies, baseline=result.baseline),
        sentence("conditions.setting.where", environment=environment, first=result.first, last=result.last),
        sentence("conditions.setting.how", measure=result.measure, base=result.base_measure, baseline=result.baseline),
    ]
    return [item for item in found if item.key != "conditions.setting.where" or environment is not None]


def _short(result: ConditionsResult) -> list[Sentence]:
    """One line per factor, then how good the predictions were and whether the recommendation holds."""
    found = [
        sentence("conditions.short.axis", name=axis.name, runs=_runs(axis.points), crossovers=_crossovers(axis))
        for axis in result.axes
        if axis.parameter is None and any(point.fastest is not None for point in axis.points)
    ]
    if result.median_error is not None:
        found.append(sentence("conditions.short.error", result=result))
    if result.judged:
        found.append(sentence("conditions.short.order", result=result))
    if result.holds is not None:
        found.append(sentence("conditions.short.holds", holds=result.holds))
    found += [
        sentence("conditions.short.unchecked", reason=axis.unchecked)
        for axis in result.axes
        if axis.unchecked is not None
    ]
    return found


def _runs(points: Sequence[SweptPoint]) -> list[Sentence]:
    """Neighbouring points with the same leaders, as one clause."""
    found = []
    for leaders, group in groupby(points, key=lambda point: point.leaders):
        values = [shown_value(point.value) for point in group]
        key = "conditions.short.nobody" if not leaders else "conditions.short.run"
        found.append(sentence(key, leaders=list(leaders), values=values))
    return found


def _crossovers(axis: AxisResult) -> list[Sentence]:
    return [sentence("conditions.crossover.short", crossing=crossing) for crossing in axis.leading]


def _axis(axis: AxisResult, result: ConditionsResult) -> dict[str, Any]:
    alone = axis.parameter is not None
    table = parameter_table(axis, result.baseline) if alone else axis_table(axis)
    return {
        "name": axis.name,
        "title": sentence(f"conditions.axis.{'parameter' if alone else axis.name}", name=axis.name),
        "figure": Markup(f"{FIGURES}/{_file(axis)}"),
        "table": table,
        "crossovers": [sentence("conditions.crossover.long", crossing=crossing) for crossing in axis.crossovers],
        "nothing": not alone and not axis.leading,
        "rates": _rates(axis),
        "reasons": _reasons(axis),
        "unchecked": axis.unchecked,
    }


def _file(axis: AxisResult) -> str:
    """The name of its figure, whatever the factor is called."""
    return f"{stem_of(axis.name, ())}.svg"


def _rates(axis: AxisResult) -> list[Sentence]:
    """Whether the emulated rates held: each all-reduce against the bytes that it put on the loopback."""
    found = []
    for point in axis.points:
        check, rate = point.rate_check, point.rate_mbit
        if check is None or rate is None:
            continue
        ideal = check.loopback_bytes * 8e3 / rate
        off = check.took_ns / ideal - 1
        found.append(
            sentence(
                "conditions.rate.check", rate=rate, check=check, ideal=ideal, off=off, holds=abs(off) <= RATE_TOLERANCE
            )
        )
    return found


def _reasons(axis: AxisResult) -> list[Sentence]:
    """Why a strategy has no time at a point."""
    return [
        sentence("conditions.reason", name=row.name, value=shown_value(point.value), status=row.status, why=row.reason)
        for point in axis.points
        for row in point.strategies
        if not row.timed
    ]


def _limits(result: ConditionsResult) -> list[Sentence]:
    found = [
        sentence("conditions.limits.model"),
        sentence("conditions.limits.baseline", baseline=result.baseline),
        sentence("conditions.limits.crossover"),
        sentence("conditions.limits.floor"),
    ]
    if any(axis.name == "rate_mbit" for axis in result.axes):
        found.append(sentence("conditions.limits.rate"))
    return found


def figure(axis: AxisResult, result: ConditionsResult, say: Words) -> str:
    """The drawing of one factor, in the first language of `say`."""
    values = [point.value for point in axis.points]
    lines = [line for name in result.strategies if (line := _line(axis, name)).measured]
    spans = []
    for crossing in axis.leading:
        high = place(crossing.high, values)
        estimate = None if crossing.estimate is None else place(crossing.estimate, values)
        spans.append((place(crossing.low, values), high, estimate))
    words = {
        key: say(f"conditions.figure.{key}", name=axis.name, baseline=result.baseline)
        for key in ("title", "x", "y", "predicted", "crossover")
    }
    ticks = [say(shown.key, **shown.fields) for shown in map(shown_value, values)]
    text = " ".join(
        f"{line.name}: " + ", ".join(f"{ratio:.3f} at {ticks[index]}" for index, ratio, _, _ in line.measured) + "."
        for line in lines
    )
    return curves(lines, ticks, spans, words=words, description=text)


def _line(axis: AxisResult, name: str) -> Line:
    measured, predicted = [], []
    for index, point in enumerate(axis.points):
        row = point.strategy(name)
        if row is None or not row.timed or row.log_ratio is None:
            continue
        low = row.log_low if row.log_low is not None and math.isfinite(row.log_low) else row.log_ratio
        high = row.log_high if row.log_high is not None and math.isfinite(row.log_high) else row.log_ratio
        measured.append((index, math.exp(row.log_ratio), math.exp(low), math.exp(high)))
        clock = next((r.predicted_ns for r in point.strategies if r.status == "baseline"), None)
        if point.base:
            predicted.append((index, math.exp(row.log_ratio)))
        elif row.predicted_ns is not None and clock:
            predicted.append((index, row.predicted_ns / clock))
    return Line(name, tuple(measured), tuple(predicted) if len(predicted) > 1 and axis.parameter is None else ())
