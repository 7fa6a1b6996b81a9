"""Remarks on rows: unusual host time with its cause, and steps that stand out."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shardscope.attribution.intervals import IntArray, clip, intersect, subtract, total, union
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.result import HostCause, StepRow
from shardscope.attribution.view import RankView
from shardscope.trace.events import Class

__all__ = ["WORDS", "HostCauses", "flag_outliers"]

Cause = tuple[str, str | None]  # what, and the name of an annotation

_HOST_SHARE = 0.10
WORDS = {
    "data_loading": "in the data loader",
    "late_launch": "waiting for the host to launch",
    "held": "launched but held by a dependency",
    "no_launch_record": "without a launch record",
    "autograd_entries": "dispatch in autograd entries",
    "python": "outside operators and annotations (Python)",
}
_ENTRIES = ("autograd::", "torch::")


class HostCauses:
    """Where the host time of one rank's steps went."""

    def __init__(self, view: RankView) -> None:
        self.view, self.table = view, view.timeline
        names = self.table.names
        entries = [c for c, name in enumerate(names) if name.startswith(_ENTRIES) or name.endswith("Backward0")]
        steps = [c for c, name in enumerate(names) if name.startswith(("ProfilerStep", "gloo:"))]
        kind, name = self.table.kind, self.table.name
        entry = (kind == Class.HOST_OP) & np.isin(name, entries)
        annotation = (kind == Class.ANNOTATION) & ~np.isin(name, steps)
        self.rows = np.flatnonzero(entry | annotation)
        self.is_entry = entry[self.rows]
        self.start, self.end = self.table.start[self.rows], self.table.end[self.rows]
        self.reach = np.maximum.accumulate(self.end)

    def flag(self, part: RowParts) -> None:
        """Name the cause where host_other is above a tenth of the step."""
        row = part.row
        if row.host_other_ns <= _HOST_SHARE * row.window_ns or not row.window_ns:
            return
        (cause, annotation), spent = max(self._causes(part).items(), key=lambda entry: entry[1])
        share = round(100 * row.host_other_ns / row.window_ns)
        words = WORDS.get(cause, f"inside {annotation}")
        row.flags.append(f"host time {share} % of the step: {round(100 * spent / row.host_other_ns)} % of it {words}")
        row.host_cause = HostCause(cause=cause, fraction=spent / row.host_other_ns, annotation=annotation)

    def _causes(self, part: RowParts) -> dict[Cause, int]:
        """Nanoseconds of host_other by cause; annotations overlap the others, so the parts need not add up."""
        row = part.row
        if row.not_launched_ns is not None and row.queued_ns is not None:
            rest = row.host_other_ns - row.not_launched_ns - row.queued_ns
            return {
                ("late_launch", None): row.not_launched_ns,
                ("held", None): row.queued_ns,
                ("no_launch_record", None): rest,
            }
        causes: dict[Cause, int] = {("data_loading", None): row.data_loading_ns}
        left = subtract(part.host, self.view.loading)
        covered = []
        for cause, spans in self._spans(row.start_ns, row.start_ns + row.window_ns):
            causes[cause] = total(intersect(left, spans))
            covered.append(spans)
        causes["python", None] = total(subtract(left, union(*covered)))
        return causes

    def _spans(self, start: int, end: int) -> Iterator[tuple[Cause, IntArray]]:
        """What encloses host time inside [start, end): autograd entries, and each annotation by name."""
        low = int(np.searchsorted(self.reach, start, side="right"))
        high = int(np.searchsorted(self.start, end, side="left"))
        rows = np.arange(low, high)[self.end[low:high] > start]
        entry = self.is_entry[rows]
        codes = self.table.name[self.rows[rows]]
        yield ("autograd_entries", None), self._inside(rows[entry], start, end)
        for code in np.unique(codes[~entry]).tolist():
            spans = self._inside(rows[~entry & (codes == code)], start, end)
            yield ("annotation", self.table.names[code][:80]), spans

    def _inside(self, rows: npt.NDArray[np.intp], start: int, end: int) -> IntArray:
        return clip(union(np.column_stack((self.start[rows], self.end[rows]))), start, end)


def flag_outliers(rows: Sequence[StepRow]) -> None:
    """Mark steps far from the rank's median: beyond 3 scaled median deviations and a tenth of the median."""
    if len(rows) < 4:
        return
    times = np.array([row.window_ns for row in rows], dtype=np.float64)
    middle = float(np.median(times))
    limit = max(3 * 1.4826 * float(np.median(np.abs(times - middle))), 0.1 * middle)
    for row, time in zip(rows, times, strict=True):
        row.outlier = bool(abs(time - middle) > limit)
