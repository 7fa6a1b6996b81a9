"""Remarks on rows: unusual host time with its cause, and steps that stand out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardscope.attribution.intervals import clip, intersect, subtract, total, union
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.result import HostCause, StepRow
from shardscope.attribution.view import RankView
from shardscope.trace.events import Class

__all__ = ["flag_host", "flag_outliers"]

Mask = npt.NDArray[np.bool_]

_HOST_SHARE = 0.10
_WORDS = {
    "data_loading": "in the data loader",
    "late_launch": "waiting for the host to launch",
    "held": "launched but held by a dependency",
    "no_launch_record": "without a launch record",
    "autograd_entries": "dispatch in autograd entries",
    "python": "outside operators and annotations (Python)",
}
_ENTRIES = ("autograd::", "torch::")


def flag_host(part: RowParts, view: RankView) -> None:
    """Name the cause where host_other is above a tenth of the step."""
    row = part.row
    if row.host_other_ns <= _HOST_SHARE * row.window_ns or not row.window_ns:
        return
    (cause, annotation), spent = max(_causes(part, view).items(), key=lambda entry: entry[1])
    share = round(100 * row.host_other_ns / row.window_ns)
    words = _WORDS.get(cause, f"inside {annotation}")
    row.flags.append(f"host_other {share} % of the step: {round(100 * spent / row.host_other_ns)} % of it {words}")
    row.host_cause = HostCause(cause=cause, fraction=spent / row.host_other_ns, annotation=annotation)


def _causes(part: RowParts, view: RankView) -> dict[tuple[str, str | None], int]:
    """Nanoseconds of host_other by cause; annotations overlap the others, so the parts need not add up."""
    row, table = part.row, view.timeline
    if row.not_launched_ns is not None and row.queued_ns is not None:
        rest = row.host_other_ns - row.not_launched_ns - row.queued_ns
        return {
            ("late_launch", None): row.not_launched_ns,
            ("held", None): row.queued_ns,
            ("no_launch_record", None): rest,
        }
    causes: dict[tuple[str, str | None], int] = {("data_loading", None): row.data_loading_ns}
    end = row.start_ns + row.window_ns
    inside = (table.start < end) & (table.end > row.start_ns)
    left = subtract(part.host, view.loading)
    entries = [code for code, name in enumerate(table.names) if name.startswith(_ENTRIES) or name.endswith("Backward0")]
    found: dict[tuple[str, str | None], Mask] = {
        ("autograd_entries", None): inside & (table.kind == Class.HOST_OP) & np.isin(table.name, entries)
    }
    steps = [code for code, name in enumerate(table.names) if name.startswith(("ProfilerStep", "gloo:"))]
    annotations = inside & (table.kind == Class.ANNOTATION) & ~np.isin(table.name, steps)
    for code in np.unique(table.name[annotations]).tolist():
        found["annotation", table.names[code][:80]] = annotations & (table.name == code)
    for name, mask in found.items():
        spans = clip(union(np.column_stack((table.start[mask], table.end[mask]))), row.start_ns, end)
        causes[name] = total(intersect(left, spans))
    covered = union(*(np.column_stack((table.start[mask], table.end[mask])) for mask in found.values()))
    causes["python", None] = total(subtract(left, covered))
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
