"""Peak memory per strategy, by what it holds."""

from shardscope.measure.record import RankMemory
from shardscope.report.figure_svg import INK, MEMORY, finished, look
from shardscope.report.figures import Drawing, Words, drawing, label, rows_csv
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Standing

__all__ = ["memory_bars"]

MB = 1e6


def memory_bars(decision: Decision, words: Words, stem: str) -> Drawing | None:
    """Stacked bars of the rank with the highest peak; None where no memory was measured."""
    wrong = (Standing.DISQUALIFIED, Standing.INCOMPARABLE)
    shown = [(row, _fullest(row)) for row in decision.strategies if row.run.memory and row.standing not in wrong]
    if not shown:
        return None
    return Drawing(stem, _draw(decision, shown, words), _numbers(decision), words.found)


def _fullest(row: StrategyResult) -> RankMemory:
    return max(row.run.memory, key=lambda memory: memory.peak_bytes)


def _parts(memory: RankMemory) -> dict[str, float]:
    values = (memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes, memory.other_bytes_at_peak)
    return dict(zip(MEMORY, (value / MB for value in values), strict=True))


def _draw(decision: Decision, shown: list[tuple[StrategyResult, RankMemory]], words: Words) -> str:
    highest = max(memory.peak_bytes for _, memory in shown) / MB
    cap = decision.constraints.memory_cap_mb
    with drawing(9, 1.4 + 0.4 * len(shown)) as figure:
        axes = figure.add_subplot()
        left = [0.0] * len(shown)
        for part in MEMORY:
            widths = [_parts(memory)[part] for _, memory in shown]
            axes.barh(range(len(shown)), widths, left=left, height=0.68, label=words(f"drawing.{part}"), **look(part))
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, (_, memory) in enumerate(shown):
            peak, residue = memory.peak_bytes / MB, memory.residue_bytes / MB
            if residue:
                axes.errorbar(peak, place, xerr=residue, color=INK, capsize=3, linewidth=1)
            axes.annotate(f"{peak:.1f}", (peak + residue, place), (5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(shown)), [label(row.name) for row, _ in shown])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        right = 1.12 * max(highest, *(left or [0.0]))
        if cap is not None and cap <= 1.5 * highest:
            right = max(right, 1.05 * cap)
            axes.axvline(cap, color=INK, linestyle=(0, (5, 3)), linewidth=1.2, label=words("drawing.cap", limit=cap))
        axes.set_xlim(0, right)
        axes.set_xlabel(words("drawing.peak"))
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=5, frameon=False)
        title = f"Peak memory of {label(decision.workload.name)} by strategy"
        return finished(figure, title, _description(shown, cap))


def _description(shown: list[tuple[StrategyResult, RankMemory]], cap: float | None) -> str:
    lines = []
    for row, memory in shown:
        parts = ", ".join(f"{part} {mb:.1f}" for part, mb in _parts(memory).items())
        lines.append(f"{label(row.name)}: {memory.peak_bytes / MB:.1f} MB on rank {memory.rank} = {parts}.")
    return " ".join([*lines, *([] if cap is None else [f"The memory cap is {cap:g} MB."])])


def _numbers(decision: Decision) -> str:
    header = ["strategy", "rank", *(f"{part}_mb" for part in MEMORY), "peak_mb", "residue_mb"]
    rows = [
        [
            row.name, memory.rank, *(f"{mb:.3f}" for mb in _parts(memory).values()),
            f"{memory.peak_bytes / MB:.3f}", f"{memory.residue_bytes / MB:.3f}",
        ]
        for row in decision.strategies
        for memory in row.run.memory
    ]  # fmt: skip
    return rows_csv(header, rows)
