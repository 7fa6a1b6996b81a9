"""The evidence on pipelines: idle time by rank, and the split of the layers that would leave less of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from shardscope.attribution.result import Attribution, load_attribution
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

__all__ = ["pipeline_idle", "split_lines"]

Rows = tuple[list[Any], list[list[Any]]]
ONE_STAGE_EACH = ("gpipe", "1f1b")  # schedules whose layers are split by strategies.pipeline.stage_layers


def pipeline_idle(decision: Decision, folders: Mapping[tuple[str, str], Path]) -> Rows:
    """Measured idle time of every rank and its four parts, as shares of the span; they add up before rounding.

    Raises ResultError when a table is missing.
    """
    header = ["Strategy", "Rank", "Idle, measured", "Closed form", "Stage imbalance", "Waiting for messages",
              "Calls", "Mostly, beyond the closed form"]  # fmt: skip
    rows: list[list[Any]] = []
    for row, result in _pipelines(decision, folders):
        for idle in _idle(row, result, decision, folders):
            shares = [percent(idle.measured), percent(idle.closed_form), signed_percent(idle.imbalance)]
            shares += [signed_percent(idle.communication), signed_percent(idle.overhead)]
            leading = {"imbalance": "stage imbalance", "communication": "waiting for messages", "overhead": "calls"}
            rows.append([code(row.name), idle.rank, *(share + Markup(" %") for share in shares), leading[idle.leading]])
    return header, rows


def split_lines(decision: Decision, folders: Mapping[tuple[str, str], Path]) -> list[Markup]:
    """One line per pipeline that idles mostly while other stages work: the better split, or why none is suggested.

    None for a model of the user's own: how its layers are split is known only once it is built.
    """
    found: list[Markup] = []
    if decision.workload.model is not None:
        return found
    for row, result in _pipelines(decision, folders):
        idle = _idle(row, result, decision, folders)
        times = stage_times(result.pipelines[0], result)
        if idle and times is not None and any(name in row.name for name in ONE_STAGE_EACH) and _led_by_imbalance(idle):
            layers = [len(part) for part in stage_layers(decision.workload, len(times))]
            said = _split(layers, times, row.noise.floor if row.noise is not None else 0.0)
            shown = Markup(" / ").join(Markup(f"{time / 1e6:.1f}") for time in times)
            found.append(
                code(row.name)
                + Markup(": beyond the closed form it idles mostly while other stages work; they compute ")
                + shown
                + Markup(" ms. ")
                + said
            )
    return found


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


def _pipelines(decision: Decision, folders: Mapping[tuple[str, str], Path]) -> list[tuple[StrategyResult, Attribution]]:
    found = []
    for row in decision.strategies:
        folder = folders.get((decision.workload.name, row.name))
        if row.ran and row.run.planned_bubble is not None and folder is not None:
            result = load_attribution(folder / "attribution.json")
            if result.pipelines:
                found.append((row, result))
    return found


def _idle(
    row: StrategyResult, result: Attribution, decision: Decision, folders: Mapping[tuple[str, str], Path]
) -> list[RankIdle]:
    table = read_intervals(folders[decision.workload.name, row.name])
    return [idle for pipeline in result.pipelines for idle in idle_by_rank(pipeline, result, table)]
