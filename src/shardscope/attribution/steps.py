"""Step windows: from the host's marks, and on devices from the launches."""

import re

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.intervals import clip, total, union
from shardscope.attribution.view import RankView, Step
from shardscope.trace.events import Class
from shardscope.trace.table import Timeline

__all__ = ["LAUNCH_UNKNOWN", "DeviceWork", "device_windows", "host_steps", "step_numbers"]

_MARK = re.compile(r"^ProfilerStep\s*#\s*(\d{1,15})$")
LAUNCH_UNKNOWN = np.iinfo(np.int64).min
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


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
    """Set `view.steps` from the host's ProfilerStep marks (operators in traces of 2021, annotations since); without
    any, one window over what happened."""
    table = view.timeline
    numbers = _marks(table)
    marking = ((table.kind == Class.ANNOTATION) | (table.kind == Class.HOST_OP)) & np.isin(table.name, list(numbers))
    rows = np.flatnonzero(marking).tolist()
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


def _marks(table: Timeline) -> dict[int, int]:
    """Step numbers by the numbers of the names that mark them."""
    return {code: int(match[1]) for code, name in enumerate(table.names) if (match := _MARK.match(name))}


def step_numbers(table: Timeline) -> set[int]:
    """The steps that a trace marks, complete or not."""
    numbers = _marks(table)
    host = (table.kind == Class.ANNOTATION) | (table.kind == Class.HOST_OP)
    return {numbers[code] for code in np.unique(table.name[host]).tolist() if code in numbers}


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
    own = _PerStep(work, len(view.steps))
    launched = _launch_times(view)
    kept: list[Step] = []
    positions: list[int] = []
    for index, step in enumerate(view.steps):
        if index and not _follows(view.steps[index - 1], step):
            boundary = max(boundary, step.host_start)  # another cycle of the profiler
        if not own.count[index] and len(view.steps) > 1 and _between(launched, step.host_start, step.host_end):
            view.warn("no_device_records", 1, f"step {step.number} launched work that has no device records; left out")
            boundary = max(boundary, step.host_end)
            continue
        end = max(step.host_end, int(own.compute_end[index]))
        other = int(own.other_end[index])
        if other > end:
            end = max(end, min(other, int(own.later_compute[index])))
        step.start, step.end = boundary, max(boundary, end)
        boundary = step.end
        if step.end == step.start:
            view.warn("empty_step", 1, f"step {step.number} has no time of its own on the device and is left out")
            continue
        kept.append(step)
        positions.append(index)
    _late_and_foreign(kept, positions, work)
    moved = np.full(len(view.steps) + 2, -1, dtype=np.int64)  # also for "before" and "after"
    moved[positions] = np.arange(len(positions))
    work.step = moved[work.step]
    view.steps = kept


class _PerStep:
    """What the work of each step amounts to. Arrays of shape (steps,): rows, last end of its compute and of the rest
    (the smallest number where there is none), and the first start of compute that a later step launched (else the
    largest number)."""

    def __init__(self, work: DeviceWork, steps: int) -> None:
        inside = (work.step >= 0) & (work.step < steps)
        self.count = np.bincount(work.step[inside], minlength=steps)
        self.compute_end = np.full(steps, _LEAST, dtype=np.int64)
        self.other_end = np.full(steps, _LEAST, dtype=np.int64)
        for ends, mask in ((self.compute_end, inside & work.compute), (self.other_end, inside & ~work.compute)):
            np.maximum.at(ends, work.step[mask], work.end[mask])
        first = np.full(steps + 1, _MOST, dtype=np.int64)
        later = work.compute & (work.step >= 0)
        np.minimum.at(first, work.step[later], work.start[later])
        self.later_compute = np.minimum.accumulate(first[::-1])[::-1][1:]


def _follows(before: Step, after: Step) -> bool:
    """Is this the next step of the same profiling cycle?"""
    return before.number is not None and after.number == before.number + 1


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


def _launch_times(view: RankView) -> NDArray[np.int64]:
    """Host times, sorted, of the calls that put work on a device."""
    table = view.timeline
    launching = np.array(["Launch" in name or "launch" in name for name in table.names], dtype=bool)
    rows = table.rows(Class.RUNTIME)
    times: NDArray[np.int64] = table.start[rows[launching[table.name[rows]]]]
    return times


def _between(times: NDArray[np.int64], start: int, end: int) -> bool:
    return bool(np.searchsorted(times, start, side="left") < np.searchsorted(times, end, side="left"))


def _late_and_foreign(steps: list[Step], positions: list[int], work: DeviceWork) -> None:
    everything = union(np.column_stack((work.start, work.end)))
    reach = np.maximum.accumulate(work.end)  # rows before the first reach beyond a window's start cannot be in it
    for step, index in zip(steps, positions, strict=True):
        step.late = total(clip(everything, max(step.start, step.host_end), step.end))
        low = int(np.searchsorted(reach, step.start, side="right"))
        high = int(np.searchsorted(work.start, step.end, side="left"))
        rows = np.flatnonzero(work.step[low:high] != index) + low
        step.foreign = total(clip(union(np.column_stack((work.start[rows], work.end[rows]))), step.start, step.end))
