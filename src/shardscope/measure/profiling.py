"""Profiled steps, exported per rank. Separate from timing; what the profiler itself costs is measured beside."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import isal.igzip
from torch.profiler import profile, schedule

from shardscope.measure.device import Device
from shardscope.measure.disk import export, writing
from shardscope.measure.sidecar import Sidecar

__all__ = ["Profiled", "profile_steps"]

_WARMUP = 1  # the profiler's own warm-up step, which it does not record


@dataclass(frozen=True)
class Profiled:
    """steps: numbers in ProfilerStep#N. times_ns: this rank's time of each."""

    steps: tuple[int, ...]
    times_ns: tuple[int, ...]


def profile_steps(
    device: Device, step: Callable[[], None], count: int, sidecar: Sidecar, trace: Path | None
) -> Profiled:
    """Run `count` profiled steps, filling `sidecar`, and write them to `trace` (.json.gz; None: this rank is idle).

    All ranks call it together. repeat=1, or the trace written after the last step would be empty.
    """
    numbers = tuple(range(_WARMUP, _WARMUP + count))
    times = []
    with (
        profile(
            activities=device.activities(),
            schedule=schedule(wait=0, warmup=_WARMUP, active=count, repeat=1),
            record_shapes=True,
            profile_memory=True,
        ) as profiler,
        sidecar,
    ):
        for number in range(_WARMUP + count):
            sidecar.step = number if number in numbers else None
            start = time.perf_counter_ns()
            step()
            device.synchronize()
            times.append(time.perf_counter_ns() - start)
            sidecar.step = None
            profiler.step()
    if trace is not None:
        _export(profiler, trace)
    return Profiled(steps=numbers, times_ns=tuple(times[_WARMUP:]))


def _export(profiler: profile, trace: Path) -> None:
    """Compress with isal: Python's gzip takes longer than the profiled steps."""
    with writing(trace.parent):
        work = tempfile.TemporaryDirectory(dir=trace.parent, ignore_cleanup_errors=True)
    with work as folder:
        plain = Path(folder) / "trace.json"
        export(profiler.export_chrome_trace, plain)
        with writing(trace), isal.igzip.open(trace, "wb") as stream:  # type: ignore[no-untyped-call]
            stream.write(plain.read_bytes())
