"""Throughput against peak memory: which strategies no other one beats in both, and which limits they keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.backends.backend_agg import RendererAgg

from shardscope.report.figure_svg import COLOURS, INK, MUTED, PAPER, RULE, finished
from shardscope.report.figures import Drawing, Words, drawing, label, rows_csv
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Standing

__all__ = ["Point", "plane", "points"]

MB = 1e6
BLUE = COLOURS["compute"]
_MARKERS: dict[str, dict[str, Any]] = {
    "recommended": {"marker": "*", "markersize": 18, "markerfacecolor": BLUE, "markeredgecolor": PAPER},
    "passes": {"marker": "o", "markersize": 8, "markerfacecolor": BLUE, "markeredgecolor": BLUE},
    "fails": {"marker": "o", "markersize": 8, "markerfacecolor": PAPER, "markeredgecolor": BLUE},
    "reference": {"marker": "s", "markersize": 7, "markerfacecolor": PAPER, "markeredgecolor": MUTED},
    "all_cores": {"marker": "D", "markersize": 7, "markerfacecolor": PAPER, "markeredgecolor": MUTED},
}


@dataclass(frozen=True)
class Point:
    """One strategy in MB and tokens/s. `low`, `high`: 95 % interval of the throughput, None where there is none."""

    name: str
    role: str  # a key of _MARKERS
    memory: float
    residue: float
    throughput: float
    low: float | None
    high: float | None
    on_front: bool = False


def points(decision: Decision) -> list[Point]:
    """Strategies with both figures; those that can be chosen say whether another one beats them in both."""
    found = []
    for row in decision.strategies:
        if row.standing not in (Standing.ELIGIBLE, Standing.REFERENCE):
            continue
        if row.peak_bytes.value is None or row.throughput.value is None:
            continue
        role = "reference" if row.standing is Standing.REFERENCE else "passes" if row.passes else "fails"
        if row.name == decision.recommendation.name:
            role = "recommended"
        memory, residue = row.peak_bytes.value / MB, (row.peak_bytes.error or 0.0) / MB
        found.append(Point(row.name, role, memory, residue, row.throughput.value, *_interval(row)))
    chosen = [point for point in found if point.role != "reference"]
    front = {point.name for point in chosen if not any(_beats(other, point) for other in chosen)}
    return [Point(**{**vars(point), "on_front": point.name in front}) for point in found]


def _beats(other: Point, point: Point) -> bool:
    """Faster with no more memory beyond the errors, or as fast with less."""
    faster = other.throughput > point.throughput
    more = other.memory - point.memory
    return (faster and more <= other.residue + point.residue) or (other.throughput == point.throughput and more < 0)


def _interval(row: StrategyResult) -> tuple[float | None, float | None]:
    """The interval of the change, which is paired, laid on the measured throughput."""
    change, value = row.throughput.change, row.throughput.value
    if change is None or change.low is None or change.high is None or value is None:
        return None, None
    base = value / (1 + change.difference)
    return base * (1 + change.low), base * (1 + change.high)


def plane(decision: Decision, words: Words, stem: str) -> Drawing | None:
    """None with fewer than two points: nothing to compare."""
    found = points(decision)
    claim = decision.all_cores
    if claim is not None and claim.peak_bytes is not None:
        name = words("drawing.all_cores", threads=claim.threads)
        found.append(Point(name, "all_cores", claim.peak_bytes / MB, 0.0, claim.throughput, None, None))
    if len(found) < 2:
        return None
    header = ["strategy", "role", "peak_mb", "residue_mb", "tokens_per_s", "low", "high", "on_front"]
    rows = [
        [p.name, p.role, f"{p.memory:.3f}", f"{p.residue:.3f}", f"{p.throughput:.1f}",
         "" if p.low is None else f"{p.low:.1f}", "" if p.high is None else f"{p.high:.1f}", p.on_front]
        for p in found
    ]  # fmt: skip
    return Drawing(stem, _draw(decision, found, words), rows_csv(header, rows), words.found)


def _draw(decision: Decision, found: Sequence[Point], words: Words) -> str:
    with drawing(9, 5.2) as figure:
        axes = figure.add_subplot()
        axes.grid()
        axes.spines[["left", "bottom"]].set_color(RULE)
        _front(axes, found, words)
        for role, style in _MARKERS.items():
            mine = [point for point in found if point.role == role]
            for point in mine:
                _errors(axes, point)
            if mine:
                axes.plot(
                    [point.memory for point in mine], [point.throughput for point in mine], linestyle="none", zorder=3,
                    markeredgewidth=1.4, label=words(f"drawing.{role}", **_threads(decision, role)), **style,
                )  # fmt: skip
        _frame(axes, decision, found, words)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel(words("drawing.peak"))
        axes.set_ylabel(words("drawing.throughput"))
        figure.legend(loc="outside upper left", ncols=4, frameon=False)
        figure.draw_without_rendering()
        _names(figure, axes, decision, found)
        title = f"Throughput against peak memory of {label(decision.workload.name)}"
        return finished(figure, title, _description(found))


def _threads(decision: Decision, role: str) -> dict[str, Any]:
    return {"threads": decision.all_cores.threads} if role == "all_cores" and decision.all_cores else {}


def _front(axes: Any, found: Sequence[Point], words: Words) -> None:
    front = sorted((point.memory, point.throughput) for point in found if point.on_front)
    if len(front) > 1:
        axes.step(
            *zip(*front, strict=True), where="post", color=MUTED, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1,
            label=words("drawing.front"),
        )  # fmt: skip


def _errors(axes: Any, point: Point) -> None:
    style = {"fmt": "none", "ecolor": MUTED, "elinewidth": 1, "capsize": 3, "zorder": 2}
    if point.low is not None and point.high is not None:
        # The interval belongs to the median of paired changes; the plain median may lie a little beside it.
        below, above = max(0.0, point.throughput - point.low), max(0.0, point.high - point.throughput)
        axes.errorbar(point.memory, point.throughput, yerr=[[below], [above]], **style)
    if point.residue:
        axes.errorbar(point.memory, point.throughput, xerr=point.residue, **style)


def _frame(axes: Any, decision: Decision, found: Sequence[Point], words: Words) -> None:
    """Limits of the axes, and the two constraints that are lines here."""
    cap, floor = decision.constraints.memory_cap_mb, decision.constraints.min_throughput_tokens_per_s
    left, right = min(p.memory - p.residue for p in found), max(p.memory + p.residue for p in found)
    top = max(max(p.throughput, p.high or 0.0) for p in found)
    near_cap, near_floor = cap is not None and cap <= 1.5 * right, floor is not None and floor <= 1.5 * top
    if cap is not None and near_cap:
        left, right = min(left, cap), max(right, cap)
    if floor is not None and near_floor:
        top = max(top, floor)
    margin = 0.08 * (right - left) or 0.1 * right
    axes.set_xlim(max(0.0, left - margin), right + 1.6 * margin)
    axes.set_ylim(0, 1.1 * top)
    style = {"color": INK, "linewidth": 1.2, "linestyle": (0, (5, 3)), "zorder": 1}
    if cap is not None:
        key = "drawing.cap" if near_cap else "drawing.cap_beyond"
        axes.plot([cap if near_cap else float("nan")] * 2, [0, 1.1 * top], label=words(key, limit=cap), **style)
        if near_cap:
            axes.axvspan(cap, right + 1.6 * margin, color=RULE, alpha=0.35, linewidth=0, zorder=0)
    if floor is not None:
        key = "drawing.floor" if near_floor else "drawing.floor_beyond"
        style["linestyle"] = (0, (2, 2))
        ends = [max(0.0, left - margin), right + 1.6 * margin]
        axes.plot(ends, [floor if near_floor else float("nan")] * 2, label=words(key, limit=floor), **style)
        if near_floor:
            axes.axhspan(0, floor, color=RULE, alpha=0.35, linewidth=0, zorder=0)


def _names(figure: Any, axes: Any, decision: Decision, found: Sequence[Point]) -> None:
    """A name beside each point, where it covers neither another name nor a point."""
    width, height = (72 * size for size in figure.get_size_inches())
    renderer = RendererAgg(width, height, 72)  # type: ignore[no-untyped-call]  # measures texts in points
    spots = [axes.transData.transform((point.memory, point.throughput)) for point in found]
    taken: list[tuple[float, ...]] = [(x - 6, y - 6, x + 6, y + 6) for x, y in spots]
    for point, (x, y) in zip(found, spots, strict=True):
        low, high = point.memory - point.residue, point.memory + point.residue
        taken.append((axes.transData.transform((low, 0))[0], y - 3, axes.transData.transform((high, 0))[0], y + 3))
        bottom, top = (axes.transData.transform((0, value or point.throughput))[1] for value in (point.low, point.high))
        taken.append((x - 3, bottom, x + 3, top))
    taken += _lines(axes, decision, found)
    inside = axes.get_window_extent(renderer)
    sides = (("left", 9), ("right", -9))
    places = [(x, 0, side) for side, x in sides] + [(0, 13, "center"), (0, -13, "center")]
    places += [(x, y, side) for y in (13, -13, 24, -24) for side, x in sides]
    for point in found:
        best = None
        for x, y, align in places:
            shown = axes.annotate(
                label(point.name), (point.memory, point.throughput), (x, y), textcoords="offset points", ha=align,
                va="center", fontsize=9.5, color=MUTED if point.role in ("reference", "all_cores") else INK, zorder=4,
            )  # fmt: skip
            box = shown.get_window_extent(renderer)
            outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
            crossed = sum(_overlap((box.x0, box.y0, box.x1, box.y1), other) for other in taken) + 1000 * outside
            if best is None or crossed < best[0]:
                if best is not None:
                    best[1].remove()
                best = (crossed, shown, (box.x0, box.y0, box.x1, box.y1))
            else:
                shown.remove()
            if not crossed:
                break
        assert best is not None
        taken.append(best[2])


def _lines(axes: Any, decision: Decision, found: Sequence[Point]) -> list[tuple[float, ...]]:
    """Where the limits and the front run."""
    front = sorted((point.memory, point.throughput) for point in found if point.on_front)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    pairs = [((x, y), (u, y)) for (x, y), (u, _) in pairwise(front)]
    pairs += [((u, y), (u, v)) for (_, y), (u, v) in pairwise(front)]
    if (cap := decision.constraints.memory_cap_mb) is not None:
        pairs.append(((cap, bottom), (cap, top)))
    if (floor := decision.constraints.min_throughput_tokens_per_s) is not None:
        pairs.append(((left, floor), (right, floor)))
    boxes: list[tuple[float, ...]] = []
    for one, two in pairs:
        (x, y), (u, v) = axes.transData.transform(one), axes.transData.transform(two)
        boxes.append((x - 1, y - 1, u + 1, v + 1))
    return boxes


def _overlap(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    width, height = min(one[2], two[2]) - max(one[0], two[0]), min(one[3], two[3]) - max(one[1], two[1])
    return float(width * height) if width > 0 and height > 0 else 0.0


def _description(found: Sequence[Point]) -> str:
    lines = []
    for point in found:
        between = "" if point.low is None else f" (95 % interval {point.low:,.0f} to {point.high:,.0f})"
        front = ", not beaten in both" if point.on_front else ""
        lines.append(
            f"{label(point.name)}: {point.memory:.1f} MB, {point.throughput:,.0f} tokens/s{between}, "
            f"{point.role.replace('_', ' ')}{front}."
        )
    return " ".join(lines)
