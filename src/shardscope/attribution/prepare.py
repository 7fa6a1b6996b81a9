"""From one rank's timeline to what it did: steps, compute, communication. One view per device that computes."""

from collections.abc import Sequence

import numpy as np

from shardscope.attribution.axes import infer_axes
from shardscope.attribution.device import fill_device_view, has_device_work
from shardscope.attribution.groups import GroupTable
from shardscope.attribution.host import fill_host_view
from shardscope.attribution.kinds import Patterns
from shardscope.attribution.marks import find_marks
from shardscope.attribution.salvage import drop_cut_steps, drop_steps_without_spans
from shardscope.attribution.steps import host_steps
from shardscope.attribution.view import RankView
from shardscope.measure.record import CommunicationCall
from shardscope.trace.events import Class
from shardscope.trace.table import Timeline

__all__ = ["REPAIRS", "device_name", "prepare"]

REPAIRS = {
    "bad_escape": "strings with unescaped backslashes or quotes; names repaired",
    "not_a_number": "nan or inf as a number; read as absent",
    "trailing_comma": "commas before a closing bracket; ignored",
    "bad_bytes": "bytes that are not UTF-8, or control characters, in strings; names repaired",
    "malformed_event": "elements that are no events; left out",
    "no_time": "events without a usable start; left out",
    "no_duration": "events that never ended; counted as having no length",
    "negative_duration": "events with negative durations; counted as having no length",
    "duplicate_record": "device records written twice; counted once",
}


def prepare(
    rank: int | None, timeline: Timeline, sidecar: Sequence[CommunicationCall] | None, patterns: Patterns
) -> list[RankView]:
    """One view, or one per device where kernels ran on several; the one with most kernel time comes first.

    `sidecar`: what the run itself noted about its communication calls. A view without steps has nothing to say.
    """
    groups = GroupTable(timeline.metadata)
    files = [str(path) for path in timeline.parts or (timeline.path,)]
    devices = _devices(timeline)
    views = []
    for place, device in enumerate(devices):
        view = RankView(rank, timeline, groups, device_name(timeline), groups.world_size, files=files)
        view.device_index, view.secondary = device, place > 0
        if not place:
            for code, count in sorted(timeline.warnings.items()):
                view.warn(code, count, REPAIRS.get(code, code))
            if groups.implausible_world:
                view.warn("implausible_world_size", 1, "the stated number of ranks is impossible and was not used")
            if len(devices) > 1:
                _say_devices(view, devices)
        _fill(view, sidecar, patterns)
        views.append(view)
    return views


def _fill(view: RankView, sidecar: Sequence[CommunicationCall] | None, patterns: Patterns) -> None:
    host_steps(view)
    find_marks(view)
    drop_cut_steps(view)
    if not view.steps:
        return
    if has_device_work(view.timeline):
        fill_device_view(view, patterns)
    else:
        fill_host_view(view, sidecar)
        if drop_steps_without_spans(view) and view.steps:
            fill_host_view(view, sidecar)
    infer_axes(view)


def _devices(table: Timeline) -> list[int | None]:
    """Devices with kernels, by falling kernel time; [None] where all work is one device's."""
    kernels = (table.kind == Class.KERNEL) & (table.device >= 0)
    found = np.unique(table.device[kernels]).tolist()
    if len(found) < 2:
        return [None]
    spent = {device: int((table.end - table.start)[kernels & (table.device == device)].sum()) for device in found}
    return sorted(found, key=lambda device: -spent[device])


def _say_devices(view: RankView, devices: Sequence[int | None]) -> None:
    names = ", ".join(str(device) for device in sorted(devices, key=str))
    view.warn(
        "several_devices",
        len(devices),
        f"one process ran kernels on devices {names}: each has its own row, and only device {devices[0]}, the busiest, "
        "is compared with other ranks",
    )
    table = view.timeline
    others = (table.kind == Class.COPY) & (table.device >= 0) & ~np.isin(table.device, np.array(devices))
    if others.any():
        view.warn("device_without_kernels", int(others.sum()), "copies on devices that run no kernel; left out")


def device_name(timeline: Timeline) -> str:
    """The kind of accelerator by its runtime records; "cpu" without device work."""
    if not has_device_work(timeline):
        return "cpu"
    if any(name.startswith("hip") for name in timeline.names):
        return "hip"
    for category in timeline.categories:
        if category and category.endswith("_runtime"):
            return category.removesuffix("_runtime")
    return "cuda"
