"""The evidence on pipelines: idle time by rank, and the split of the layers that would leave less of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from shardscope.attribution.result import Attribution
from shardscope.report.markdown import code, percent, signed_percent, text
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.pipeline_idle import (
    RankIdle,
    better_split,
    idle_by_rank,
    read_intervals,
    stage_times,
)
from shardscope.strategies.pipeline import stage_layers

__all__ = ["IdlePipeline", "pipeline_idle", "pipelines", "split_lines"]

Rows = tuple[list[Any], list[list[Any]]]
LEADING = {"imbalance": "stage imbalance", "communication": "waiting for messages", "overhead": "calls"}
ONE_STAGE_EACH = ("gpipe", "1f1b")  # schedules whose layers are split by strategies.pipeline.stage_layers


@dataclass(frozen=True)
class IdlePipeline:
    """A strategy with pipelines, and the idle time of its ranks."""

    row: StrategyResult
    result: Attribution
    ranks: list[RankIdle]


def pipelines(
    decision: Decision, folders: Mapping[tuple[str, str], Path], results: Mapping[str, Attribution]
) -> list[IdlePipeline]:
    """Those of the decision. `results`: the attribution of every strategy that ran.

    Raises ResultError when a table is missing.
    """
    found = []
    for row in decision.strategies:
        result = results.get(row.name)
        if result is None or row.run.planned_bubble is None or not result.pipelines:
            continue
        table = read_intervals(folders[decision.workload.name, row.name])
        ranks = [idle for pipeline in result.pipelines for idle in idle_by_rank(pipeline, result, table)]
        found.append(IdlePipeline(row, result, ranks))
    return found


def pipeline_idle(found: Sequence[IdlePipeline]) -> Rows:
    """Measured idle time of every rank and its four parts, as shares of the span; they add up before rounding."""
    header = ["Strategy", "Rank", "Idle, measured", "Closed form", "Stage imbalance", "Waiting for messages",
              "Calls", "Mostly, beyond the closed form"]  # fmt: skip
    rows: list[list[Any]] = []
    for pipeline in found:
        for idle in pipeline.ranks:
            shares = [percent(idle.measured), percent(idle.closed_form), signed_percent(idle.imbalance)]
            shares += [signed_percent(idle.communication), signed_percent(idle.overhead)]
            most = LEADING[idle.leading] if idle.measured > idle.closed_form else "–"
            rows.append([code(pipeline.row.name), idle.rank, *(share + Markup(" %") for share in shares), most])
    return header, rows


def split_lines(decision: Decision, found: Sequence[IdlePipeline]) -> list[Markup]:
    """One line per pipeline that idles mostly while other stages work: the better split, or why none is suggested.

    None for a model of the user's own: how its layers are split is known only once it is built.
    """
    lines: list[Markup] = []
    if decision.workload.model is not None:
        return lines
    for pipeline in found:
        row, idle = pipeline.row, pipeline.ranks
        times = stage_times(pipeline.result.pipelines[0], pipeline.result)
        if idle and times is not None and any(name in row.name for name in ONE_STAGE_EACH) and _led_by_imbalance(idle):
            layers = [len(part) for part in stage_layers(decision.workload, len(times))]
            said = _split(layers, times, row.noise.floor if row.noise is not None else 0.0)
            shown = Markup(" / ").join(Markup(f"{time / 1e6:.1f}") for time in times)
            lines.append(
                code(row.name)
                + Markup(": beyond the closed form it idles mostly while other stages work; they compute ")
                + shown
                + Markup(" ms. ")
                + said
            )
    return lines


def _led_by_imbalance(idle: Sequence[RankIdle]) -> bool:
    """In the mean of the ranks."""
    imbalance = sum(each.imbalance for each in idle)
    others = (sum(each.communication for each in idle), sum(each.overhead for each in idle))
    return imbalance > max(0.0, *others)


def _split(layers: Sequence[int], times: Sequence[float], floor: float) -> Markup:
    """floor: the noise of step times; nothing is suggested that gains less."""
    if max(times) * len(times) / sum(times) - 1 <= floor:
        return Markup("That is equal within the noise: it is micro-batches of unequal length, which no split changes.")
    split = better_split(layers, times)
    if split is None:
        return Markup("No other split into whole layers has a lighter heaviest stage.")
    change = f"layers {_layers(split.better)} instead of {_layers(split.now)}"
    gain = percent(split.gain) + Markup(" %")
    if split.gain <= floor:
        return (
            text(change[0].upper() + change[1:])
            + Markup(" would make the heaviest stage lighter by ")
            + gain
            + Markup(", less than the noise floor of its times (±")
            + percent(floor)
            + Markup(" %): not suggested.")
        )
    return Markup("*Predicted:* ") + text(change) + Markup(" make the heaviest stage lighter by ") + gain + Markup(".")


def _layers(split: tuple[int, ...]) -> str:
    return " + ".join(map(str, split))
