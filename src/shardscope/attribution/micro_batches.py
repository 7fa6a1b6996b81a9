"""When each rank of a pipeline worked on which micro-batch, in the summary step: what a picture of it needs."""

from collections.abc import Iterator

from shardscope.attribution.analysis import Analysis
from shardscope.attribution.view import Mark, RankView, Step

__all__ = ["HEADER", "micro_batch_rows"]

HEADER = ("rank", "step", "phase", "micro_batch", "start_ns", "end_ns")


def micro_batch_rows(analysis: Analysis) -> Iterator[tuple[int | None, int | None, str, int, int, int]]:
    """One row per mark, in order of time, as HEADER, on the clock of intervals.csv.

    On CPU the annotation itself; on a device from the first start to the last end of the work launched inside it, and
    no row where nothing was launched.
    """
    for key, view in sorted(analysis.views.items()):
        part = analysis.parts.get((key, analysis.result.summary_step))
        if part is None or view.secondary:
            continue
        step = next((found for found in view.steps if found.number == analysis.result.summary_step), None)
        rows = []
        for mark in view.marks if step is not None else ():
            assert step is not None
            span = _span(view, step, mark)
            if span is not None:
                rows.append((*span, "backward" if mark.backward else "forward", mark.index))
        for start, end, phase, index in sorted(rows):
            yield view.rank, analysis.result.summary_step, phase, index, start, end


def _span(view: RankView, step: Step, mark: Mark) -> tuple[int, int] | None:
    if not step.host_start <= mark.start < step.host_end:
        return None
    if view.launches is None:
        return mark.start, mark.end
    inside = (view.launches.launch >= mark.start) & (view.launches.launch < mark.end)
    if not inside.any():
        return None
    return int(view.launches.start[inside].min()), int(view.launches.end[inside].max())
