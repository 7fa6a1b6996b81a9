"""This machine as the node model sees it, measured: peak, efficiency, links and the cost of a call, from the runs.

For the check of one strategy the link and the cost of a call are taken from the other strategies' runs, so that the
error is that of a prediction; the efficiency comes from one run, by preference `single`'s, whose own step is then no
test.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from shardscope.attribution.result import Attribution
from shardscope.measure.record import Environment, RunRecord
from shardscope.selection.claims import LedgerMean
from shardscope.selection.node_claims import Link, Machine
from shardscope.selection.node_model import BACKWARD_SHARE, ring, work
from shardscope.selection.terms import REFERENCE
from shardscope.vocabulary import Kind

__all__ = ["Run", "as_measured", "fit_link", "here", "samples_of"]

NS = 1e9
Sample = tuple[int, float, float]  # (ring steps, bytes one rank sends, seconds)


@dataclass(frozen=True)
class Run:
    """One strategy that ran: its record, its attribution and the mean ledger of its summary step."""

    record: RunRecord
    result: Attribution
    ledger: LedgerMean
    step_ns: float  # median, without the profiler

    @property
    def host_s(self) -> float:
        """Host time of a step, its share laid on the step without the profiler."""
        return self.ledger.host_ns / self.ledger.step_ns * self.step_ns / NS

    @property
    def calls(self) -> float:
        """Communication calls of a step, mean over ranks."""
        rows = [row for rank in self.result.ranks for row in rank.steps if row.step == self.result.summary_step]
        return sum(call.count for row in rows for call in row.calls) / len(rows) if rows else 0.0


def samples_of(run: Run) -> list[Sample]:
    """The mean transfer of every kind, size and group: (steps, bytes sent, seconds).

    The mean, since steps add transfers up. Messages are left out: gloo bounds their transfer only loosely.
    """
    backend = run.record.environment.backend if run.record.environment is not None else "gloo"
    found: dict[tuple[int, float], list[float]] = defaultdict(list)
    for each in run.result.collectives:
        many = each.group is not None and len(each.group) > 1 and each.kind is not Kind.SEND_RECEIVE
        if each.bytes and each.transfer_ns and each.group and many:
            found[ring(each.kind, len(each.group), each.bytes, backend)].append(each.transfer_ns / NS)
    return [(steps, sent, statistics.fmean(seconds)) for (steps, sent), seconds in found.items()]


def fit_link(samples: Sequence[Sample]) -> Link | None:
    """α and β of t = steps·α + bytes/β that miss the samples least, relatively (least squares, α not negative).

    None where the samples show no bandwidth: all of them too small for their size to matter.
    """
    if not samples:
        return None
    rows = [(steps / seconds, sent / seconds) for steps, sent, seconds in samples]
    aa, ab, bb = (math.fsum(x * y for x, y in pairs) for pairs in (
        [(a, a) for a, _ in rows], rows, [(b, b) for _, b in rows]
    ))  # fmt: skip
    ya, yb = math.fsum(a for a, _ in rows), math.fsum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    alpha, inverse = 0.0, yb / bb if bb else 0.0
    if determinant > 1e-9 * aa * bb:
        both = (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant
        if min(both) > 0:
            alpha, inverse = both
        elif both[1] <= 0:
            return None
    return Link(base_s=0.0, alpha_s=alpha, bytes_per_s=1 / inverse) if inverse > 0 else None


def here(runs: Mapping[str, Run], without: str | None = None) -> tuple[Machine, str, int, bool] | None:
    """(machine, the run that gave the efficiency, number of transfers, whether `without`'s own had to be used).

    None where no run measured its matmul peak or its step.
    """
    usable = {name: run for name, run in runs.items() if _peak(run) is not None and _flops(run) is not None}
    if not usable:
        return None
    calibration = REFERENCE if REFERENCE in usable else next(iter(usable))
    first = usable[calibration].record
    environment, spec = first.environment, first.workload
    assert environment is not None
    others = {name: run for name, run in usable.items() if name != without}
    samples = [sample for run in others.values() for sample in samples_of(run)]
    own = not samples
    if own and without is not None and without in usable:
        samples = samples_of(usable[without])
    peaks = [peak for run in usable.values() if (peak := _peak(run)) is not None]
    rates = [rate for run in usable.values() if (rate := _memory_rate(run)) is not None]
    machine = Machine(
        name="here",
        title=next(iter(environment.device_names), environment.cpu),
        backend=environment.backend,
        nodes=1,
        devices=environment.world_size,
        peak_flops={spec.dtype: statistics.median(peaks)},
        efficiency=1.0,
        memory_bytes=environment.memory_bytes / environment.world_size,
        memory_bytes_per_s=statistics.median(rates) if rates else None,
        link=fit_link(samples),
        call_s=_call_cost(others, usable[calibration]),
        hides=environment.device != "cpu"
        or environment.usable_cores > environment.world_size * environment.threads_per_rank,
    )
    return _calibrated(machine, usable[calibration]), calibration, len(samples), own and bool(samples)


def as_measured(profile: Machine, machine: Machine, environment: Environment) -> Machine:
    """`profile` with the compute of `machine`, where that is measured on such a device; else as published."""
    if environment.device == "cpu" or profile.gpu is None or profile.gpu not in machine.title:
        return profile
    return structs.replace(
        profile,
        peak_flops={**profile.peak_flops, **machine.peak_flops},
        efficiency=machine.efficiency,
        memory_bytes_per_s=machine.memory_bytes_per_s,
        memory_share=1.0,
        assumed=tuple(key for key in profile.assumed if key != "fp32"),
        measured=("peak", "efficiency", "memory_rate"),
    )


def _flops(run: Run) -> int | None:
    return run.record.timing.flops_per_step if run.record.timing is not None else None


def _peak(run: Run) -> float | None:
    """Matmul peak of one rank."""
    timing, environment = run.record.timing, run.record.environment
    if timing is None or environment is None or not timing.matmul_peak_flops_per_s:
        return None
    return timing.matmul_peak_flops_per_s / environment.world_size


def _memory_rate(run: Run) -> float | None:
    timing, environment = run.record.timing, run.record.environment
    rate = timing.memory_bytes_per_s if timing is not None else None
    return rate / environment.world_size if rate and environment is not None else None


def _calibrated(machine: Machine, run: Run) -> Machine:
    """Set the efficiency so that the model gives this run's compute and host time.

    Where the memory's traffic alone would take longer, it is left to the efficiency.
    """
    record = run.record
    whole = _flops(run)
    assert whole is not None and record.plan is not None
    ranks = [state.rank for state in record.plan.state if state.parameter_bytes]
    # Model FLOPs leave recomputation out; the model of a step adds the forward a second time.
    flops = whole / len(ranks) * (2 - BACKWARD_SHARE if record.workload.recompute else 1)
    share = (run.ledger.compute_ns + run.ledger.host_ns) / run.ledger.step_ns
    seconds = share * run.step_ns / NS - run.calls * machine.call_s
    peak = machine.peak_flops[record.workload.dtype]
    for trial in (machine, structs.replace(machine, memory_bytes_per_s=None)):
        idle = work(record.workload, record.plan, trial, ranks[0], flops=0.0, layers=record.workload.layers)
        left = seconds - record.workload.micro_batches * (idle.forward + idle.backward) - idle.optimizer
        if left > 0 and flops / left <= peak:
            return structs.replace(trial, efficiency=flops / left / peak)
    return structs.replace(machine, memory_bytes_per_s=None, efficiency=min(1.0, flops / max(seconds, 1e-9) / peak))


def _call_cost(runs: Mapping[str, Run], calm: Run) -> float:
    """Host time per call: what the other runs take beyond `calm`, over their calls beyond its."""
    others = [run for run in runs.values() if run is not calm]
    calls = math.fsum(run.calls - calm.calls for run in others)
    beyond = math.fsum(run.host_s - calm.host_s for run in others)
    return max(0.0, beyond / calls) if calls > 0 else 0.0
