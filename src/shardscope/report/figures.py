"""Step-time bars as SVG: the same bytes for the same numbers, with a description that needs no eyes."""

import io
import warnings
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["SETTINGS", "Bar", "described", "step_bars"]

# Colours that stay apart for the common forms of colour blindness (Okabe and Ito, 2008), with hatches besides.
COLOURS = {
    "compute": ("#0072B2", ""),
    "all_reduce": ("#E69F00", ""),
    "all_gather": ("#F0E442", ""),
    "reduce_scatter": ("#D55E00", ""),
    "all_to_all": ("#CC79A7", ""),
    "broadcast": ("#E69F00", "///"),
    "send_receive": ("#009E73", ""),
    "other": ("#D55E00", "///"),
    "unknown": ("#999999", "xxx"),
    "copies": ("#56B4E9", "///"),
    "bubble": ("#FFFFFF", "..."),
    "host": ("#BBBBBB", ""),
}
# For every figure: the same bytes for the same numbers, and text that stays text.
SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.hashsalt": "shardscope",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True)
class Bar:
    """One strategy's step: (part, milliseconds) from left to right."""

    name: str
    parts: tuple[tuple[str, float], ...]
    step: float


def step_bars(bars: list[Bar], labels: dict[str, str], *, title: str, axis: str, description: str) -> str:
    """Horizontal stacked bars, one per strategy in the given order, as SVG text with title and description."""
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # Text stays text in the file; that this font lacks a glyph only makes the layout a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(9, 1.5 + 0.42 * len(bars)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        drawn = [part for part in COLOURS if any(part == name and ms > 0 for bar in bars for name, ms in bar.parts)]
        left = [0.0] * len(bars)
        for part in drawn:
            widths = [dict(bar.parts).get(part, 0.0) for bar in bars]
            colour, hatch = COLOURS[part]
            shown = [index for index, width in enumerate(widths) if width > 0]  # an empty bar would leave its edge
            axes.barh(
                shown,
                [widths[index] for index in shown],
                left=[left[index] for index in shown],
                height=0.7,
                color=colour,
                hatch=hatch,
                edgecolor="#333333",
                linewidth=0.5,
                label=labels[part],
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for index, bar in enumerate(bars):
            axes.annotate(f"{bar.step:.1f}", (bar.step, index), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.1 * max(bar.step for bar in bars))
        axes.set_xlabel(axis)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=min(6, len(drawn)), frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return described(stream.getvalue(), title, description)


def described(svg: str, title: str, description: str) -> str:
    """Give the drawing a title and a description for readers that do not see it."""
    start = svg.index("<svg ")
    end = svg.index(">", start)
    attributes = ' role="img" aria-labelledby="figure-title figure-description"'
    texts = (
        f'<title id="figure-title">{escape(title)}</title>\n <desc id="figure-description">{escape(description)}</desc>'
    )
    return f"{svg[:end]}{attributes}>\n {texts}{svg[end + 1 :]}"
