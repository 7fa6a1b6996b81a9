"""Which rank waits and which one makes the others wait, per strategy: the picture of stragglers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shardscope.attribution.result import Attribution, RankResult
from shardscope.attribution.stragglers import over_steps
from shardscope.report.figure_svg import INK, MUTED, RULE, finished, look
from shardscope.report.figures import Drawing, Words, drawing, label, rows_csv

__all__ = ["MOST_RANKS", "RankTimes", "rank_bars", "rank_times"]

MS = 1e6
MOST_RANKS = 16  # lanes and bars that are drawn per strategy
PARTS = ("transferring", "waiting", "unknown", "bubble")


@dataclass(frozen=True)
class RankTimes:
    """One rank, ms per step. `parts`: attributed transfer and waiting (or, where these cannot be told apart, both as
    "unknown"), and the bubble. `caused`: exposed waiting of other ranks for this one."""

    strategy: str
    rank: int
    parts: Mapping[str, float]
    caused: float


def rank_times(name: str, result: Attribution) -> list[RankTimes]:
    """All ranks of one strategy; empty where nothing is communicated."""
    steps = len({row.step for rank in result.ranks for row in rank.steps}) or 1
    caused = {found.rank: found.caused_ns for found in over_steps(result)}
    known = [rank for rank in result.ranks if rank.rank is not None and rank.steps]
    rows = [RankTimes(name, rank.rank or 0, _parts(rank), caused.get(rank.rank or 0, 0) / steps / MS) for rank in known]
    return rows if any(sum(row.parts.values()) or row.caused for row in rows) else []


def _parts(rank: RankResult) -> dict[str, float]:
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for row in rank.steps:
        total, waited = sum(row.attributed_ns.values()), row.attributed_wait_ns
        waiting = 0 if waited is None else sum(waited.values())
        found["transferring"].append(0 if waited is None else total - waiting)
        found["waiting"].append(waiting)
        found["unknown"].append(total if waited is None else 0)
        found["bubble"].append(row.bubble_ns or 0)
    return {part: fmean(values) / MS for part, values in found.items()}


def rank_bars(workload: str, results: Mapping[str, Attribution], words: Words, stem: str) -> Drawing | None:
    """Bars to both sides of zero, grouped by strategy; None where no strategy communicates."""
    every = [row for name, result in results.items() for row in rank_times(name, result)]
    if not every:
        return None
    header = ["strategy", "rank", *(f"{part}_ms" for part in PARTS), "caused_ms"]
    cells = [
        [row.strategy, row.rank, *(f"{row.parts[part]:.4f}" for part in PARTS), f"{row.caused:.4f}"] for row in every
    ]
    shown = [row for row in every if row.rank in _drawn([other for other in every if other.strategy == row.strategy])]
    return Drawing(stem, _draw(workload, shown, words), rows_csv(header, cells), words.found)


def _drawn(rows: Sequence[RankTimes]) -> set[int]:
    """Where there are too many ranks, those that others wait for most."""
    return {row.rank for row in sorted(rows, key=lambda row: (-row.caused, row.rank))[:MOST_RANKS]}


def _draw(workload: str, shown: Sequence[RankTimes], words: Words) -> str:
    places, ticks, groups, at = [], [], [], 0.0
    for index, row in enumerate(shown):
        if index and row.strategy != shown[index - 1].strategy:
            at += 0.55
        if not index or row.strategy != shown[index - 1].strategy:
            groups.append((row.strategy, at))
        places.append(at)
        ticks.append(words("drawing.rank", rank=row.rank))
        at += 1.0
    with drawing(9, 1.4 + 0.24 * at) as figure:
        axes = figure.add_subplot()
        axes.barh(places, [-row.caused for row in shown], height=0.8, label=words("drawing.caused"), **look("caused"))
        left = [0.0] * len(shown)
        for part in PARTS:
            widths = [row.parts[part] for row in shown]
            drawn = [index for index, width in enumerate(widths) if width > 0]
            if drawn:
                name = words(f"part.{part}") if part in ("unknown", "bubble") else words(f"drawing.{part}")
                axes.barh(
                    [places[i] for i in drawn], [widths[i] for i in drawn], left=[left[i] for i in drawn], height=0.8,
                    label=name, **look(part),
                )  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(places, ticks, fontsize=8.5, color=MUTED)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(at - 0.3, -0.7)
        low, high = max(row.caused for row in shown), max(left)
        axes.set_xlim(-1.08 * max(low, 0.02 * high), 1.05 * max(high, 0.02 * low))
        axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        axes.set_xlabel(words("drawing.per_step"))
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        for number, (strategy, start) in enumerate(groups):
            axes.annotate(
                label(strategy), (0, start), (-58, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", va="center",
            )  # fmt: skip
            if number:
                axes.axhline(start - 0.775, color=RULE, linewidth=0.6)
        figure.legend(loc="outside upper left", ncols=5, frameon=False)
        return finished(figure, f"Waiting and transfer of every rank, {label(workload)}", _description(shown))


def _description(shown: Sequence[RankTimes]) -> str:
    lines = []
    for row in shown:
        parts = ", ".join(f"{part} {ms:.1f}" for part, ms in row.parts.items() if ms > 0) or "nothing"
        lines.append(
            f"{label(row.strategy)}, rank {row.rank}: {parts}; it caused {row.caused:.1f} ms of waiting per step."
        )
    return " ".join(lines)
