"""One step, rank by rank: a lane for each rank, filled with what it does at every moment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from numpy.typing import NDArray

from shardscope.attribution.result import INTERVALS_FILE, MICRO_BATCHES_FILE, Attribution, read_table
from shardscope.errors import ResultError
from shardscope.report.figure_ranks import MOST_RANKS
from shardscope.report.figure_svg import COLOURS, INK, MUTED, finished, look
from shardscope.report.figures import Drawing, Words, drawing, label, rows_csv

__all__ = ["Lane", "MicroBatch", "aligned", "read_lanes", "shares", "timeline"]

MS = 1e6
COLUMNS = 520  # moments that are told apart; about one and a half points each
LANE, LANE_MARKED = 0.78, 0.7  # of the room between two lanes
LEVELS = 12  # of height in a moment that several things share
FLOATS = NDArray[np.float64]


@dataclass(frozen=True)
class MicroBatch:
    """Forward or backward of one micro-batch, ns."""

    backward: bool
    index: int
    start: int
    end: int


@dataclass(frozen=True)
class Lane:
    """The summary step of one rank: starts and ends in ns, in order and without a gap, and what each interval is."""

    rank: int
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    categories: Sequence[str]
    micro_batches: Sequence[MicroBatch] = ()


def read_lanes(folder: Path) -> list[Lane]:
    """intervals.csv of one attribution by rank, and micro_batches.csv where the strategy has any.

    Raises ResultError for tables that are missing or malformed.
    """
    found: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    marks: dict[int, list[MicroBatch]] = defaultdict(list)
    path = folder / INTERVALS_FILE
    try:
        for row in read_table(path):
            found[int(row["rank"])].append((int(row["start_ns"]), int(row["end_ns"]), row["category"]))
        path = folder / MICRO_BATCHES_FILE
        for row in read_table(path) if path.is_file() else ():
            span = int(row["start_ns"]), int(row["end_ns"])
            marks[int(row["rank"])].append(MicroBatch(row["phase"] == "backward", int(row["micro_batch"]), *span))
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path}: malformed ({error}); attribute the run again") from error
    return [_lane(rank, pieces, marks[rank]) for rank, pieces in sorted(found.items()) if pieces]


def _lane(rank: int, pieces: list[tuple[int, int, str]], marks: list[MicroBatch]) -> Lane:
    starts, ends, categories = zip(*sorted(pieces), strict=True)
    joined: list[MicroBatch] = []
    for mark in sorted(marks, key=lambda mark: mark.start):
        # A stage may mark one micro-batch twice in a row: its layers, then its loss.
        if joined and (joined[-1].backward, joined[-1].index) == (mark.backward, mark.index):
            mark = MicroBatch(mark.backward, mark.index, joined.pop().start, mark.end)
        joined.append(mark)
    return Lane(rank, np.array(starts, np.int64), np.array(ends, np.int64), categories, tuple(joined))


def aligned(lanes: Sequence[Lane], result: Attribution) -> list[Lane]:
    """The lanes on one clock, rank 0's, where the attribution could align the clocks; else each on its rank's own."""
    offsets = result.clock.offset_ns if result.clock.applied else {}
    return [_shifted(lane, offsets.get(str(lane.rank), 0)) for lane in lanes]


def _shifted(lane: Lane, by: int) -> Lane:
    marks = tuple(replace(mark, start=mark.start - by, end=mark.end - by) for mark in lane.micro_batches)
    return replace(lane, starts=lane.starts - by, ends=lane.ends - by, micro_batches=marks)


def shares(lane: Lane, edges: FLOATS) -> dict[str, FLOATS]:
    """Category → its share of each moment between two edges, shape (len(edges) − 1,).

    The shares are whole LEVELS; what rounding leaves over in one moment is carried to the next, so that no category
    gains or loses more than one level over the whole lane.
    """
    names = sorted(set(lane.categories), key=_order)
    exact = np.stack([_spent(lane, name, edges) for name in names]) / np.diff(edges)
    levels = np.zeros_like(exact)
    carried = np.zeros(len(names))
    for column in range(exact.shape[1]):
        wanted = exact[:, column] * LEVELS + carried
        # A moment at the border of the step is not full.
        total = round(float(exact[:, column].sum()) * LEVELS)
        given = np.maximum(np.floor(wanted + 1e-9), 0)
        for place in np.argsort(given - wanted, kind="stable")[: max(0, total - int(given.sum()))]:
            given[place] += 1
        while given.sum() > total:
            given[int(np.argmax(np.where(given > 0, given - wanted, -np.inf)))] -= 1
        carried = wanted - given
        levels[:, column] = given
    return {name: levels[index] / LEVELS for index, name in enumerate(names)}


def _spent(lane: Lane, name: str, edges: FLOATS) -> FLOATS:
    """Nanoseconds of one category between each two edges."""
    mine = np.array([category == name for category in lane.categories])
    starts, ends = lane.starts[mine], lane.ends[mine]
    knots = np.column_stack((starts, ends)).ravel().astype(np.float64)
    total = np.concatenate(([0], np.cumsum(ends - starts))).astype(np.float64)
    return np.diff(np.interp(edges, knots, np.column_stack((total[:-1], total[1:])).ravel()))


def _part(category: str) -> tuple[str, bool]:
    """(part of the step, whether it is waiting)."""
    kind, _, state = category.partition(":")
    kind = "host" if kind == "host_other" else kind
    return (kind if kind in COLOURS else "unknown"), state == "wait"


def _order(category: str) -> tuple[int, int, str]:
    part, waiting = _part(category)
    last = {"copies": 2, "bubble": 3, "host": 4}.get(part, 1 if waiting else 0)
    return last, list(COLOURS).index(part), category


def timeline(
    workload: str, strategy: str, lanes: Sequence[Lane], result: Attribution, words: Words, stem: str
) -> Drawing:
    """The lanes of one strategy; `stem` names the file. At most MOST_RANKS lanes are drawn; the CSV has all."""
    drawn = aligned(lanes[:MOST_RANKS], result)
    start, end = min(int(lane.starts[0]) for lane in drawn), max(int(lane.ends[-1]) for lane in drawn)
    stages = {rank: stage for pipe in result.pipelines for stage, rank in enumerate(pipe.ranks)}
    marked = any(lane.micro_batches for lane in drawn)
    size = 0.72 + (0.68 if marked else 0.48) * len(drawn)
    with drawing(9, size, constrained=False) as figure:
        axes = figure.add_subplot()
        top = 1 - 0.36 / size
        figure.subplots_adjust(left=0.135, right=0.965, bottom=0.3 / size, top=top)
        edges = np.linspace(start, end, COLUMNS + 1)
        seen: set[str] = set()
        for place, lane in enumerate(drawn):
            seen |= _draw_lane(axes, lane, edges, place, LANE_MARKED if marked else LANE)
        names = [_name(lane.rank, stages, words) for lane in drawn]
        height = LANE_MARKED if marked else LANE
        axes.set_yticks([place + height / 2 for place in range(len(drawn))], names)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(drawn) - 0.1, -0.3 if marked else -0.08)
        axes.set_xlim(0, (end - start) / MS)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
        axes.spines["left"].set_visible(False)
        handles = [Patch(label=_called(category, words), **_look(category)) for category in sorted(seen, key=_order)]
        figure.legend(
            handles=_unique(handles), loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=6, frameon=False,
            borderaxespad=0.2,
        )  # fmt: skip
        svg = finished(figure, f"One step of {label(strategy)} on {label(workload)}, rank by rank", _description(lanes))
    return Drawing(stem, svg, _numbers(lanes), words.found)


def _unique(handles: list[Patch]) -> list[Patch]:
    return list({handle.get_label(): handle for handle in handles}.values())


def _name(rank: int, stages: Mapping[int, int], words: Words) -> str:
    if rank in stages:
        return words("drawing.stage", rank=rank, stage=stages[rank])
    return words("drawing.rank", rank=rank)


def _called(category: str, words: Words) -> str:
    part, waiting = _part(category)
    return words("drawing.kind_waiting", kind=part) if waiting else words(f"part.{part}")


def _look(category: str) -> dict[str, Any]:
    part, waiting = _part(category)
    return {**look(part, waiting=waiting), "linewidth": 0.4 if part == "bubble" else 0}


def _draw_lane(axes: Any, lane: Lane, edges: FLOATS, place: int, height: float) -> set[str]:
    """Draw one lane between `place` and `place` + `height`; returns the categories it has."""
    start = float(edges[0])
    times = (edges - start) / MS
    base = np.zeros(len(edges) - 1)
    found = shares(lane, edges)
    for category, share in found.items():
        outline = _outline(times, place + height * (1 - base), place + height * (1 - base - share))
        if outline is not None:
            axes.add_patch(PathPatch(outline, **{**_look(category), "linewidth": 0}))
        base = base + share
    left, right = (int(lane.starts[0]) - start) / MS, (int(lane.ends[-1]) - start) / MS
    frame = Outline([(left, place), (right, place), (right, place + height), (left, place + height), (left, place)])
    axes.add_patch(PathPatch(frame, facecolor="none", edgecolor=MUTED, linewidth=0.6, clip_on=False))
    span = (edges[-1] - edges[0]) / MS
    for mark in lane.micro_batches:
        _draw_mark(axes, mark, place, start, span)
    return {name for name, share in found.items() if share.any()}


def _draw_mark(axes: Any, mark: MicroBatch, place: int, start: float, span: float) -> None:
    left, right = (mark.start - start) / MS, (mark.end - start) / MS
    y = place - 0.05
    gap = min(0.0012 * span, (right - left) / 4)
    axes.plot(
        [left + gap, right - gap], [y, y], color=INK if mark.backward else MUTED,
        linewidth=2.4 if mark.backward else 1.2, solid_capstyle="butt", clip_on=False,
    )  # fmt: skip
    if right - left > 0.025 * span:
        text = f"{'B' if mark.backward else 'F'}{mark.index}"
        axes.annotate(
            text, ((left + right) / 2, y), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=7.5,
            color=INK if mark.backward else MUTED, annotation_clip=False,
        )  # fmt: skip


def _outline(times: FLOATS, lower: FLOATS, upper: FLOATS) -> Outline | None:
    """The area between two step functions; None where it is empty. Runs of equal height are one corner each."""
    vertices: list[tuple[float, float]] = []
    codes: list[Any] = []
    filled = np.abs(upper - lower) > 1e-12
    runs = np.flatnonzero(np.diff(np.concatenate(([False], filled, [False])).astype(int))).reshape(-1, 2)
    for first, last in runs:
        there, back = _steps(times, upper, first, last), _steps(times, lower, first, last)[::-1]
        ring = [*there, *back, there[0]]
        vertices += ring
        codes += [Outline.MOVETO, *[Outline.LINETO] * (len(ring) - 2), Outline.CLOSEPOLY]
    return Outline(vertices, codes) if vertices else None


def _steps(times: FLOATS, values: FLOATS, first: int, last: int) -> list[tuple[float, float]]:
    found = [(float(times[first]), float(values[first]))]
    for column in range(first + 1, last):
        if values[column] != values[column - 1]:
            found += [(float(times[column]), float(values[column - 1])), (float(times[column]), float(values[column]))]
    return [*found, (float(times[last]), float(values[last - 1]))]


def _totals(lane: Lane) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for start, end, category in zip(lane.starts.tolist(), lane.ends.tolist(), lane.categories, strict=True):
        found[category] += (end - start) / MS
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _description(lanes: Sequence[Lane]) -> str:
    lines = []
    for lane in lanes[:MOST_RANKS]:
        parts = ", ".join(f"{category.replace('_', ' ')} {ms:.1f}" for category, ms in _totals(lane).items())
        lines.append(f"Rank {lane.rank}: {parts} ms.")
    return " ".join(lines)


def _numbers(lanes: Sequence[Lane]) -> str:
    header = ["rank", "category", "ms"]
    return rows_csv(header, [[lane.rank, name, f"{ms:.4f}"] for lane in lanes for name, ms in _totals(lane).items()])
