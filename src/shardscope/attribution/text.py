"""The summary step as a table for a terminal."""

from collections.abc import Sequence

from shardscope.attribution.result import Attribution, PipelineBubble, RankResult, StepRow
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["as_text"]


def as_text(result: Attribution) -> str:
    """One line per rank: shares of the step; then what stands beside them. Names from traces are made printable."""
    lines = [f"step {_number(result.summary_step)}, of {_steps(result)} complete; shares of the step in %"]
    lines += _table(_columns(result), [_cells(rank, result) for rank in result.ranks])
    lines += _axes(result)
    lines += [_pipeline(pipeline) for pipeline in result.pipelines]
    lines += _stragglers(result)
    lines += _remarks(result)
    return "\n".join(_printable(line) for line in lines) + "\n"


def _number(step: int | None) -> str:
    return "without marks" if step is None else str(step)


def _steps(result: Attribution) -> int:
    return max((len(rank.steps) for rank in result.ranks), default=0)


def _row(rank: RankResult, result: Attribution) -> StepRow | None:
    return next((row for row in rank.steps if row.step == result.summary_step), None)


def _kinds(result: Attribution) -> list[Kind]:
    rows = [row for rank in result.ranks if (row := _row(rank, result))]
    return [kind for kind in Kind if any(row.attributed_ns.get(kind) for row in rows)]


def _columns(result: Attribution) -> list[str]:
    kinds = [kind.replace("_", "-") for kind in _kinds(result)]
    return ["rank", "step ms", "compute", *kinds, "(waiting)", "copies", "bubble", "host", "overlap", "evidence"]


def _cells(rank: RankResult, result: Attribution) -> list[str]:
    row = _row(rank, result)
    name = "?" if rank.rank is None else str(rank.rank)
    if row is None:
        return [name, "no such step"]
    cells = [name, f"{row.window_ns / 1e6:.3f}", _share(row.compute_ns, row)]
    cells += [_share(row.attributed_ns.get(kind, 0), row) for kind in _kinds(result)]
    waited = None if row.attributed_wait_ns is None else sum(row.attributed_wait_ns.values())
    cells.append(_share(waited, row) + ("*" if row.bounds and waited is not None else ""))
    cells += [_share(row.copies_exposed_ns, row), _share(row.bubble_ns, row), _share(row.host_other_ns, row)]
    busy = sum(row.busy_ns.values())
    cells.append(f"{100 * sum(row.overlapped_ns.values()) / busy:.1f}" if busy else "–")
    levels = [
        f"{level} {100 * rank.evidence_fraction.get(level, 0):.0f}"
        for level in Evidence
        if rank.evidence_fraction.get(level)
    ]
    cells.append(", ".join(levels) or "–")
    return cells


def _share(value: int | None, row: StepRow) -> str:
    return "–" if value is None else f"{100 * value / row.window_ns:.1f}" if row.window_ns else "0.0"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    filled = [list(row) + [""] * (len(header) - len(row)) for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *filled]) for i in range(len(header))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *filled]
    ]


def _axes(result: Attribution) -> list[str]:
    lines = []
    for rank in result.ranks:
        row = _row(rank, result)
        if row is None or not any(axis is not Axis.UNKNOWN for axis in row.attributed_by_axis_ns):
            continue
        parts = [
            f"{axis} {kind.replace('_', '-')} {_share(spent, row)}"
            for kind, axes in row.attributed_by_kind_axis_ns.items()
            for axis, spent in axes.items()
        ]
        lines.append(f"rank {rank.rank} by axis: {', '.join(parts)}")
    return lines


def _pipeline(pipeline: PipelineBubble) -> str:
    name = f"pipeline over ranks {', '.join(map(str, pipeline.ranks))}"
    if pipeline.measured_fraction is None:
        return f"{name}: bubble not measurable, {pipeline.reason}"
    form = "unknown" if pipeline.closed_form_fraction is None else f"{pipeline.closed_form_fraction:.3f}"
    bound = " (upper bound: no micro-batch marks)" if pipeline.upper_bound else ""
    measured = f"{name}: bubble {pipeline.measured_fraction:.3f}{bound}"
    return f"{measured}, closed form {form}, micro-batches {pipeline.micro_batches}"


def _stragglers(result: Attribution) -> list[str]:
    """Who makes the others wait: exposed waiting in the collectives a rank was last in."""
    caused: dict[int, int] = {}
    last: dict[int, int] = {}
    matched = [item for item in result.collectives if item.step == result.summary_step]
    for item in matched:
        if item.last_rank is None or item.exposed_wait_ns is None:
            continue
        last[item.last_rank] = last.get(item.last_rank, 0) + 1
        caused[item.last_rank] = caused.get(item.last_rank, 0) + sum(item.exposed_wait_ns.values())
    order = sorted(caused, key=lambda rank: -caused[rank])
    return [
        f"rank {rank} makes others wait {caused[rank] / 1e6:.3f} ms exposed, last in {last[rank]} of {len(matched)}"
        for rank in order[:3]
        if caused[rank]
    ]


def _remarks(result: Attribution) -> list[str]:
    lines = []
    if any(row.bounds for rank in result.ranks if (row := _row(rank, result))):
        reasons = "ranks are missing, all-to-all may move data before the last rank, gloo messages end at their wait"
        lines.append(f"* a bound, not exact ({reasons})")
    if result.clock.applied:
        moved = ", ".join(f"rank {rank} {offset} ns" for rank, offset in result.clock.offset_ns.items())
        lines.append(f"clocks aligned: {moved}")
    if result.clock.residual_ns is not None:
        lines.append(f"clocks agree within {result.clock.residual_ns} ns; no order is claimed below that")
    if result.missing_ranks:
        lines.append(f"ranks without a trace: {', '.join(map(str, result.missing_ranks))}")
    lines += [f"left out: {item.file} ({item.reason})" for item in result.skipped_files]
    for rank in result.ranks:
        row = _row(rank, result)
        name = "?" if rank.rank is None else rank.rank
        lines += [f"rank {name}: {flag}" for flag in (row.flags if row else [])]
        lines += [f"rank {name}: {warning.code} × {warning.count}: {warning.detail}" for warning in rank.warnings]
    return lines


def _printable(line: str) -> str:
    """File and event names come from outside: no control characters reach the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
