"""Step windows: from the host's marks, and on devices from the launches."""

import re

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.intervals import clip, total, union
from shardscope.attribution.view import RankView, Step
from shardscope.trace.events import Class
from shardscope.trace.table import Timeline

__all__ = ["LAUNCH_UNKNOWN", "DeviceWork", "device_windows", "host_steps"]

_MARK = re.compile(r"^ProfilerStep\s*#\s*(\d{1,15})$")
LAUNCH_UNKNOWN = np.iinfo(np.int64).min


class DeviceWork:
    """Kernels and copies by start. Arrays of shape (n,): start, end, launch (host time or LAUNCH_UNKNOWN), stream,
    compute (bool), and `step`, the position of the step that launched each (-1: before the first mark)."""

    def __init__(
        self,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        launch: NDArray[np.int64],
        stream: NDArray[np.int64],
        compute: NDArray[np.bool_],
    ) -> None:
        self.start, self.end, self.launch, self.stream, self.compute = start, end, launch, stream, compute
        self.step = np.full(len(start), -1, dtype=np.int64)


def host_steps(view: RankView) -> None:
    """Set `view.steps` from ProfilerStep annotations of the host; without any, one window over what happened."""
    table = view.timeline
    numbers = {code: int(match[1]) for code, name in enumerate(table.names) if (match := _MARK.match(name))}
    rows = [int(row) for row in table.rows(Class.ANNOTATION) if int(table.name[row]) in numbers]
    view.steps = []
    seen: set[int] = set()
    for row in rows:
        number, start, end = numbers[int(table.name[row])], int(table.start[row]), int(table.end[row])
        if number in seen:
            view.warn("duplicate_step", 1, f"step {number} is marked more than once; the first mark counts")
            continue
        if view.steps:  # marks touch or overlap by a rounding; boundaries never move back
            start = max(start, view.steps[-1].end)
        if end <= start:
            view.warn("empty_step", 1, f"step {number} has no time and is left out")
            continue
        seen.add(number)
        view.steps.append(Step(number, start, end, start, end))
    if not view.steps:
        start, end = _extent(table)
        view.steps = [Step(None, start, end, start, end)]
        view.warn("no_step_marks", 1, "no ProfilerStep in the trace: one window over all operators and device work")


def _extent(table: Timeline) -> tuple[int, int]:
    host = table.kind == Class.HOST_OP
    mask = host if host.any() else table.kind != Class.DROPPED
    device = (table.kind == Class.KERNEL) | (table.kind == Class.COPY)
    mask = mask | device
    return int(table.start[mask].min()), int(table.end[mask].max())


def device_windows(view: RankView, work: DeviceWork) -> None:
    """Move the windows to the device: a step ends when the compute it launched ends.

    Sets `work.step` and each step's window, late and foreign device time; leaves out steps without device records.
    """
    if not len(work.start) or view.steps[0].number is None:
        return
    _assign_steps(view.steps, work)
    boundary = view.steps[0].host_start
    before = work.step < 0
    if before.any():
        boundary = max(boundary, min(int(work.end[before].max()), view.steps[0].host_end))
    kept: list[Step] = []
    positions: list[int] = []
    for index, step in enumerate(view.steps):
        if index and not _follows(view.steps[index - 1], step):
            boundary = max(boundary, step.host_start)  # another cycle of the profiler
        mine = work.step == index
        if not mine.any() and len(view.steps) > 1 and _launches_something(view, step):
            view.warn("no_device_records", 1, f"step {step.number} launched work that has no device records; left out")
            boundary = max(boundary, step.host_end)
            continue
        end = max([step.host_end, *_last(work.end[mine & work.compute])])
        other = mine & ~work.compute
        if other.any():
            later = work.start[(work.step > index) & work.compute]
            limit = int(later.min()) if len(later) else int(work.end[other].max())
            end = max(end, min(int(work.end[other].max()), limit))
        step.start, step.end = boundary, max(boundary, end)
        boundary = step.end
        if step.end == step.start:
            view.warn("empty_step", 1, f"step {step.number} has no time of its own on the device and is left out")
            continue
        kept.append(step)
        positions.append(index)
    for step, index in zip(kept, positions, strict=True):
        _late_and_foreign(step, index, work)
    moved = np.full(len(view.steps) + 2, -1, dtype=np.int64)  # also for "before" and "after"
    moved[positions] = np.arange(len(positions))
    work.step = moved[work.step]
    view.steps = kept


def _follows(before: Step, after: Step) -> bool:
    """Is this the next step of the same profiling cycle?"""
    return before.number is not None and after.number == before.number + 1


def _last(ends: NDArray[np.int64]) -> list[int]:
    return [int(ends.max())] if len(ends) else []


def _assign_steps(steps: list[Step], work: DeviceWork) -> None:
    known = work.launch != LAUNCH_UNKNOWN
    work.step[known] = _positions(steps, work.launch[known])
    for stream in np.unique(work.stream[~known]):
        rows = np.flatnonzero(work.stream == stream)
        sure = known[rows]
        if sure.any():
            # The neighbour before on the stream; for the head of a stream the first one that is known.
            last = np.maximum.accumulate(np.where(sure, np.arange(len(rows)), -1))
            last[last < 0] = int(np.flatnonzero(sure)[0])
            work.step[rows[~sure]] = work.step[rows[last[~sure]]]
        else:
            work.step[rows] = _positions(steps, work.start[rows])


def _positions(steps: list[Step], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which step each host time belongs to: time between two marks leads up to the later one; -1 before all of them,
    len(steps) after."""
    ends = np.array([step.host_end for step in steps], dtype=np.int64)
    index = np.searchsorted(ends, times, side="right").astype(np.int64)
    index[times < steps[0].host_start] = -1
    return index


def _launches_something(view: RankView, step: Step) -> bool:
    table = view.timeline
    mask = (table.kind == Class.RUNTIME) & (table.start >= step.host_start) & (table.start < step.host_end)
    return any("Launch" in table.names[code] or "launch" in table.names[code] for code in np.unique(table.name[mask]))


def _late_and_foreign(step: Step, index: int, work: DeviceWork) -> None:
    def inside(mask: NDArray[np.bool_], start: int, end: int) -> int:
        return total(clip(union(np.column_stack((work.start[mask], work.end[mask]))), start, end))

    step.late = inside(work.step >= -1, max(step.start, step.host_end), step.end)
    step.foreign = inside(work.step != index, step.start, step.end)
