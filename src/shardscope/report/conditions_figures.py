"""One drawing per factor: step time against the baseline's, measured with intervals, predicted dashed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib as mpl

from shardscope.report.figure_svg import INK, finished
from shardscope.report.figures import drawing

__all__ = ["Line", "curves", "place"]

# Okabe and Ito (2008); markers besides, so that nothing depends on colour alone. Each is a shade off the colour of a
# part of the step, which would be drawn hatched.
STYLES = (
    (INK, "o"),
    ("#0072b3", "s"),
    ("#d55e02", "^"),
    ("#009e74", "D"),
    ("#cc79a8", "v"),
    ("#e69f02", "P"),
    ("#56b4ea", "X"),
    ("#99999a", "*"),
)


@dataclass(frozen=True)
class Line:
    """One strategy: (place on the axis, ratio, low, high) measured, (place, ratio) predicted."""

    name: str
    measured: tuple[tuple[int, float, float, float], ...]
    predicted: tuple[tuple[int, float], ...]


def place(value: float | None, values: Sequence[float | None]) -> float:
    """Where a value lies between the ticks 0, 1, 2, …: linear in its logarithm. None: the last tick."""
    if value is None or value in values:
        return float(values.index(value))
    known = [(index, tick) for index, tick in enumerate(values) if tick is not None]
    for (left, low), (_, high) in pairwise(known):
        if low <= value <= high:
            return left + (math.log(value / low) / math.log(high / low) if low > 0 else (value - low) / (high - low))
    return float(known[0][0] if value < known[0][1] else known[-1][0])


def curves(
    lines: Sequence[Line],
    ticks: Sequence[str],
    crossovers: Sequence[tuple[float, float, float | None]],
    *,
    words: dict[str, str],
    description: str,
) -> str:
    """SVG. crossovers: (low, high, estimate) as places. words: title, x, y, predicted, crossover."""
    with drawing(8, 4) as figure:
        axes = figure.add_subplot()
        for index, (low, high, estimate) in enumerate(crossovers):
            axes.axvspan(low, high, color="#f0e443", alpha=0.35, lw=0, label=words["crossover"] if index == 0 else None)
            if estimate is not None:
                axes.axvline(estimate, color="#b8a800", linewidth=1)
        for index, line in enumerate(lines):
            colour, marker = STYLES[index % len(STYLES)]
            x, y = [p[0] for p in line.measured], [p[1] for p in line.measured]
            spread = [[p[1] - p[2] for p in line.measured], [p[3] - p[1] for p in line.measured]]
            axes.errorbar(x, y, yerr=spread, color=colour, marker=marker, markersize=5, capsize=3, label=line.name)
            if line.predicted:
                label = words["predicted"] if not any(earlier.predicted for earlier in lines[:index]) else None
                x, y = [p[0] for p in line.predicted], [p[1] for p in line.predicted]
                axes.plot(x, y, color=colour, linestyle="--", linewidth=1, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%.3g"))
        # Few enough labels not to overlap, on a logarithmic scale that spans a tenth or a factor of twenty.
        low, high = axes.get_ylim()
        wide = high > 4 * low
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)) if wide else mpl.ticker.MaxNLocator(6))
        axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.set_xticks(range(len(ticks)), list(ticks))
        axes.set_xlabel(words["x"])
        axes.set_ylabel(words["y"])
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
        return finished(figure, words["title"], description)
