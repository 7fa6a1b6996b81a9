"""What all drawings share, and the drawing of the step times: stacked bars, the same bytes for the same numbers."""

import csv
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from shardscope.report.figure_svg import COLOURS, INK, MUTED, PAPER, RULE, finished, look
from shardscope.report.sentences import Language

__all__ = ["COLOURS", "Bar", "Drawing", "Words", "drawing", "label", "rows_csv", "step_bars"]


_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.hashsalt": "shardscope",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "legend.fontsize": 9,
    "legend.handlelength": 1.4,
    "legend.handleheight": 1.0,
    "legend.columnspacing": 1.4,
}
LONGEST_LABEL = 30


@dataclass(frozen=True)
class Bar:
    """One strategy's step: (part, milliseconds) from left to right."""

    name: str
    parts: tuple[tuple[str, float], ...]
    step: float


class Words:
    """The words of one drawing: English as it is drawn, and what summary.html says instead in Chinese."""

    def __init__(self, english: Language, chinese: Language) -> None:
        self._languages = (english, chinese)
        self.found: dict[str, str] = {}

    def __call__(self, key: str, **fields: Any) -> str:
        """The English of a sentence without names."""
        english, chinese = (str(language.say_key(key, **fields)) for language in self._languages)
        self.found[english] = chinese
        return english


@dataclass(frozen=True)
class Drawing:
    """One figure: file name without suffix, SVG, its numbers as CSV, and its words: English text → Chinese text."""

    stem: str
    svg: str
    csv: str
    words: Mapping[str, str] = field(default_factory=dict)


def label(value: object, longest: int = LONGEST_LABEL) -> str:
    """Any text as a label: one line, printable characters, not longer than a drawing can bear."""
    flat = " ".join(str(value).split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def rows_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as CSV text. Cells that a spreadsheet would run as a formula are made text."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "@") else cell for cell in row])
    return stream.getvalue()


@contextmanager
def drawing(width: float, height: float, *, constrained: bool = True) -> Iterator[Figure]:
    """A figure of the given size in inches, in the report's style."""
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        # Text stays text in the file; that this font lacks a glyph only makes the layout a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), dpi=72, layout="constrained" if constrained else None)
        FigureCanvasSVG(figure)
        yield figure


def step_bars(bars: list[Bar], labels: dict[str, str], *, title: str, axis: str, description: str) -> str:
    """Horizontal stacked bars, one per strategy in the given order, as SVG text with title and description."""
    with drawing(9, 1.4 + 0.4 * len(bars)) as figure:
        axes = figure.add_subplot()
        drawn = [part for part in COLOURS if any(part == name and ms > 0 for bar in bars for name, ms in bar.parts)]
        left = [0.0] * len(bars)
        for part in drawn:
            widths = [dict(bar.parts).get(part, 0.0) for bar in bars]
            shown = [index for index, width in enumerate(widths) if width > 0]  # an empty bar would leave its edge
            axes.barh(
                shown,
                [widths[index] for index in shown],
                left=[left[index] for index in shown],
                height=0.68,
                label=labels[part],
                **look(part),
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for index, bar in enumerate(bars):
            axes.annotate(f"{bar.step:.1f}", (bar.step, index), (5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(bars)), [label(bar.name) for bar in bars])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1 * max(bar.step for bar in bars))
        axes.set_xlabel(axis)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=min(6, len(drawn)), frameon=False)
        return finished(figure, title, description)
