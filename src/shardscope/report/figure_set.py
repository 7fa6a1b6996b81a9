"""All drawings of one workload."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardscope.attribution.result import Attribution
from shardscope.report import tables
from shardscope.report.figure_memory import memory_bars
from shardscope.report.figure_plane import plane
from shardscope.report.figure_ranks import rank_bars
from shardscope.report.figure_timeline import read_lanes, timeline
from shardscope.report.figures import Bar, Drawing, Words, label, rows_csv, step_bars
from shardscope.report.sentences import Language
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Standing

__all__ = ["FigureSet", "figure_set", "stem_of"]


@dataclass(frozen=True)
class FigureSet:
    """The drawings of one workload, and the attributions they come from. None: nothing to draw."""

    stem: str
    results: Mapping[str, Attribution]
    step: Drawing | None = None
    memory: Drawing | None = None
    plane: Drawing | None = None
    ranks: Drawing | None = None
    timelines: Mapping[str, Drawing] = field(default_factory=dict)  # by strategy

    @property
    def drawings(self) -> list[Drawing]:
        """All of them."""
        single = (self.step, self.memory, self.plane, self.ranks)
        return [*(found for found in single if found is not None), *self.timelines.values()]


def stem_of(name: str, taken: Container[str]) -> str:
    """A file name's part for a workload or strategy that no other one in `taken` has, whatever it is called."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:100]
    while stem in taken:
        stem += "_"
    return stem


def figure_set(
    decision: Decision,
    folders: Mapping[tuple[str, str], Path],
    attributed: Mapping[str, Attribution],
    stem: str,
    languages: Sequence[Language],
) -> FigureSet:
    """Draw everything. `folders`: (workload, strategy) → attribution folder; `languages`: English and Chinese.

    `attributed`: the attribution of every strategy that ran. Raises ResultError when a table of one cannot be read.
    """
    english, chinese = languages
    name = decision.workload.name
    # What computes something else would only invite comparison.
    apart = {row.name for row in decision.strategies if row.standing in (Standing.DISQUALIFIED, Standing.INCOMPARABLE)}
    results = {strategy: result for strategy, result in attributed.items() if strategy not in apart}
    lanes = {strategy: read_lanes(folders[name, strategy]) for strategy in results}
    timelines: dict[str, Drawing] = {}
    taken: set[str] = set()
    for strategy, found in lanes.items():
        if found:
            part = stem_of(strategy, taken)
            taken.add(part)
            words = Words(english, chinese)
            timelines[strategy] = timeline(name, strategy, found, results[strategy], words, f"timeline-{stem}-{part}")
    return FigureSet(
        stem=stem,
        results=results,
        step=_step(decision, Words(english, chinese), f"step-time-{stem}"),
        memory=memory_bars(decision, Words(english, chinese), f"memory-{stem}"),
        plane=plane(decision, Words(english, chinese), f"plane-{stem}"),
        ranks=rank_bars(name, results, Words(english, chinese), f"ranks-{stem}"),
        timelines=timelines,
    )


def _step(decision: Decision, words: Words, stem: str) -> Drawing | None:
    bars = tables.bars(decision)
    if not bars:
        return None
    labels = {part: words(f"part.{part}") for bar in bars for part, ms in bar.parts if ms > 0}
    svg = step_bars(
        bars,
        labels,
        title=f"Step time of {label(decision.workload.name)} by strategy",
        axis=words("drawing.step"),
        description=_description(bars, labels),
    )
    header = ["strategy", "step_ms", *(f"{part}_ms" for part, _ in bars[0].parts)]
    rows = [[bar.name, f"{bar.step:.1f}", *(f"{ms:.1f}" for _, ms in bar.parts)] for bar in bars]
    return Drawing(stem, svg, rows_csv(header, rows), words.found)


def _description(bars: Sequence[Bar], labels: Mapping[str, str]) -> str:
    """The drawing in words."""
    lines = []
    for bar in bars:
        parts = ", ".join(f"{labels[part]} {ms:.1f}" for part, ms in bar.parts if ms > 0)
        lines.append(f"{label(bar.name)}: {bar.step:.1f} ms = {parts}.")
    return " ".join(lines)
