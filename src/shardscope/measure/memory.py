"""Memory of one rank with one model alive: state by category, peak of a step, resident set size.

CPU has no allocator counters, so the peak is rebuilt from the profiler's memory events; on CUDA the allocator's own
counters are used.
"""

import ctypes
import ctypes.util
import gc
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch.profiler import profile, record_function

from shardscope.errors import MeasurementError
from shardscope.measure.device import Device
from shardscope.measure.disk import export, writing
from shardscope.measure.record import RankMemory

__all__ = ["MemoryEvent", "Rise", "measure_memory", "peak_rss", "read_memory_events", "rise_between", "unique_bytes"]

_MARK = "shardscope::memory"
_STEPS = 3  # the first is skipped (it seeds the live set), the second settles the caches of the profiler itself
_CPU = 0  # "Device Type" of host memory in Kineto


@dataclass(frozen=True)
class MemoryEvent:
    """One allocation (bytes > 0) or free (bytes < 0) at an address."""

    time_ns: int
    address: int
    bytes: int


@dataclass(frozen=True)
class Rise:
    """peak_bytes: highest live total over the window minus the total at its start. residue_bytes: its error."""

    peak_bytes: int
    residue_bytes: int


def rise_between(events: Iterable[MemoryEvent], start_ns: int, end_ns: int) -> Rise:
    """Rise of the live total within [start, end), from events in time order that begin a step before the window.

    Frees on threads the profiler does not watch (gloo's) are never recorded; a later allocation at an address that is
    still live proves one. Such blocks count until the proof (upper bound: the peak) and not at all (lower bound).
    A step ends with what it began with, so the total left over at the end is unexplained too. The residue is the
    larger of the two.
    """
    events = list(events)
    upper = _totals(events, start_ns, end_ns, ignored=frozenset())
    lower = _totals(events, start_ns, end_ns, ignored=_unseen_frees(events))

    return Rise(
        peak_bytes=max(upper) - upper[0],
        residue_bytes=max(abs(upper[-1] - upper[0]), (max(upper) - upper[0]) - (max(lower) - lower[0]), 0),
    )


def _unseen_frees(events: Sequence[MemoryEvent]) -> frozenset[int]:
    """Indices of allocations whose free was never recorded though their address was used again."""
    live: dict[int, int] = {}
    unseen = set()
    for index, event in enumerate(events):
        if event.bytes > 0:
            if event.address in live:
                unseen.add(live[event.address])
            live[event.address] = index
        else:
            live.pop(event.address, None)
    return frozenset(unseen)


def _totals(events: Sequence[MemoryEvent], start_ns: int, end_ns: int, ignored: frozenset[int]) -> list[int]:
    """Live total at the start of the window and after each event in it, without the `ignored` allocations."""
    live: dict[int, int] = {}
    total, totals = 0, list[int]()
    for index, event in enumerate(events):
        if event.time_ns >= end_ns:
            break
        if event.time_ns >= start_ns and not totals:
            totals.append(total)
        if event.bytes > 0:
            total -= live.pop(event.address, 0)
            if index in ignored:
                continue
            live[event.address] = event.bytes
            total += event.bytes
        else:
            # An address never seen: allocated before the profiler started, so it is part of the state at the start.
            total -= live.pop(event.address, -event.bytes)
        if totals:
            totals.append(total)
    return totals or [total]


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _MemoryArguments(msgspec.Struct):
    address: int = msgspec.field(name="Addr")
    bytes: int = msgspec.field(name="Bytes")
    device_type: int = msgspec.field(name="Device Type")


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def read_memory_events(text: bytes) -> tuple[list[MemoryEvent], list[int]]:
    """Host memory events of an exported trace in time order, and the times (ns) of the marks between steps.

    Raises MeasurementError when the trace cannot be decoded.
    """
    try:
        trace = msgspec.json.decode(text, type=_Trace)
        memory, marks = [], []
        for event in trace.events:
            if event.name == "[memory]":
                arguments = msgspec.json.decode(event.args, type=_MemoryArguments)
                if arguments.device_type == _CPU:
                    memory.append(MemoryEvent(_nanoseconds(event.ts), arguments.address, arguments.bytes))
            elif event.name == _MARK and event.ph == "X":
                marks.append(_nanoseconds(event.ts))
    except (msgspec.MsgspecError, ValueError) as error:
        raise MeasurementError(f"the profiler's memory trace cannot be read ({error})") from error
    return sorted(memory, key=lambda event: event.time_ns), sorted(marks)


def _nanoseconds(text: msgspec.Raw) -> int:
    whole, _, fraction = bytes(text).decode().partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def unique_bytes(tensors: Iterable[torch.Tensor], seen: set[int] | None = None) -> int:
    """Bytes of the storages behind `tensors`, each counted once, and not if already in `seen`."""
    seen = set() if seen is None else seen
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total


def measure_memory(
    rank: int,
    device: Device,
    step: Callable[[], None],
    state: Callable[[], tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]],
) -> RankMemory:
    """Memory of this rank; `step` runs one training step and leaves the gradients in place.

    At least one step must have run, so that the optimizer's state exists. All ranks call it together.
    """
    rss = _step_rss(device, step)
    device.start_phase()
    before = device.allocator_bytes()
    parameters, gradients, moments = state()
    seen: set[int] = set()
    held = [unique_bytes(tensors, seen) for tensors in (parameters, gradients, moments)]
    del parameters, gradients, moments
    if before is None:
        rise = _profiled_rise(device, step)
        peak = sum(held) + rise.peak_bytes
    else:
        step()
        device.synchronize()
        rise = Rise(0, abs((device.allocator_bytes() or 0) - before))
        peak = device.allocator_peak_bytes() or 0
    return RankMemory(
        rank=rank,
        parameter_bytes=held[0],
        gradient_bytes=held[1],
        optimizer_bytes=held[2],
        other_bytes_at_peak=peak - sum(held),
        peak_bytes=peak,
        residue_bytes=rise.residue_bytes,
        rss_peak_bytes=rss,
    )


def _profiled_rise(device: Device, step: Callable[[], None]) -> Rise:
    """Run steps under the profiler's memory events and rebuild the last one's rise."""
    with profile(activities=device.activities(), profile_memory=True) as profiler:
        for _ in range(_STEPS):
            step()
            with record_function(_MARK):
                pass
    with writing(Path(tempfile.gettempdir())):
        work = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with work as folder:
        path = Path(folder) / "memory.json"
        export(profiler.export_chrome_trace, path)
        events, marks = read_memory_events(path.read_bytes())
    if len(marks) != _STEPS:
        raise MeasurementError(f"the profiler recorded {len(marks)} of {_STEPS} memory marks; measure again")
    return rise_between(events, marks[-2], marks[-1])


def _step_rss(device: Device, step: Callable[[], None]) -> int | None:
    """High-water mark of the resident set during one step, after giving freed memory back to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(ctypes.util.find_library("c") or None), "malloc_trim", None)
    if sys.platform.startswith("linux") and trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5\n")
    except OSError:
        step()
        return None  # without the reset the mark is of another phase
    step()
    device.synchronize()
    return peak_rss()


def peak_rss() -> int | None:
    """VmHWM of this process in bytes, None where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
