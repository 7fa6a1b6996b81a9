"""Remarks on rows: unusual host time with its cause, and steps that stand out."""

from collections.abc import Sequence

import numpy as np

from shardscope.attribution.intervals import clip, intersect, subtract, total, union
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.result import StepRow
from shardscope.attribution.view import RankView
from shardscope.trace.events import Class

__all__ = ["flag_host", "flag_outliers"]

_HOST_SHARE = 0.10
_ENTRIES = ("autograd::", "torch::")


def flag_host(part: RowParts, view: RankView) -> None:
    """Name the cause where host_other is above a tenth of the step."""
    row = part.row
    if row.host_other_ns <= _HOST_SHARE * row.window_ns or not row.window_ns:
        return
    causes = _causes(part, view)
    name, spent = max(causes.items(), key=lambda entry: entry[1])
    share = round(100 * row.host_other_ns / row.window_ns)
    row.flags.append(f"host_other {share} % of the step: {round(100 * spent / row.host_other_ns)} % of it {name}")


def _causes(part: RowParts, view: RankView) -> dict[str, int]:
    row, table = part.row, view.timeline
    if row.not_launched_ns is not None and row.queued_ns is not None:
        rest = row.host_other_ns - row.not_launched_ns - row.queued_ns
        return {
            "waiting for the host to launch": row.not_launched_ns,
            "launched but held by a dependency": row.queued_ns,
            "without a launch record": rest,
        }
    causes = {"in the data loader": row.data_loading_ns}
    end = row.start_ns + row.window_ns
    inside = (table.start < end) & (table.end > row.start_ns)
    left = subtract(part.host, view.loading)
    entries = [code for code, name in enumerate(table.names) if name.startswith(_ENTRIES) or name.endswith("Backward0")]
    found = {"dispatch in autograd entries": inside & (table.kind == Class.HOST_OP) & np.isin(table.name, entries)}
    steps = [code for code, name in enumerate(table.names) if name.startswith(("ProfilerStep", "gloo:"))]
    annotations = inside & (table.kind == Class.ANNOTATION) & ~np.isin(table.name, steps)
    for code in np.unique(table.name[annotations]).tolist():
        found[f"inside {table.names[code][:80]}"] = annotations & (table.name == code)
    for name, mask in found.items():
        spans = clip(union(np.column_stack((table.start[mask], table.end[mask]))), row.start_ns, end)
        causes[name] = total(intersect(left, spans))
    covered = union(*(np.column_stack((table.start[mask], table.end[mask])) for mask in found.values()))
    causes["outside operators and annotations (Python)"] = total(subtract(left, covered))
    return causes


def flag_outliers(rows: Sequence[StepRow]) -> None:
    """Mark steps far from the rank's median: beyond 3 scaled median deviations and a tenth of the median."""
    if len(rows) < 4:
        return
    times = np.array([row.window_ns for row in rows], dtype=np.float64)
    middle = float(np.median(times))
    limit = max(3 * 1.4826 * float(np.median(np.abs(times - middle))), 0.1 * middle)
    for row, time in zip(rows, times, strict=True):
        row.outlier = bool(abs(time - middle) > limit)
