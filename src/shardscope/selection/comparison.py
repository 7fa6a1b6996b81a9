"""Changes against the strategy that all are compared with: intervals, noise floors and verdicts.

Each run measures the baseline and itself in turn (A B A′ …), so log(B / √(A·A′)) is free of drift and log(A′ / A) shows
what the noise alone looks like. A difference is claimed only when its Student-t interval leaves zero and it is larger
than the noise floor; a difference of peaks only when it is larger than both residues together.
"""

import math
from dataclasses import dataclass

from shardscope.attribution.result import Attribution
from shardscope.measure.record import RunRecord
from shardscope.selection.claims import Change, Noise, Quantity
from shardscope.selection.statistics import (
    Interval,
    floor_of,
    relative,
    student,
    triple_logs,
    welch,
)
from shardscope.selection.terms import Basis, Standing, Verdict

__all__ = [
    "NOISE_LIMIT",
    "Side",
    "candidate_times",
    "change_of",
    "fraction_change",
    "judge",
    "latency_change",
    "memory_quantity",
    "noise_of",
    "peak_of",
    "rate_change",
    "relative_time",
    "time_change",
]

NOISE_LIMIT = 0.10  # a wider noise floor means that times cannot be ranked


@dataclass(frozen=True)
class Side:
    """One run, read and judged as far as possible on its own."""

    name: str
    record: RunRecord
    attribution: Attribution | None
    standing: Standing
    reason: str | None
    noise: Noise | None = None
    no_time_reason: str | None = None

    @property
    def usable(self) -> bool:
        """Others may be compared with it."""
        return self.standing in (Standing.ELIGIBLE, Standing.REFERENCE)


def candidate_times(record: RunRecord) -> list[int]:
    """Step times of the strategy itself, in ns."""
    if record.timing is None:
        return []
    return [candidate for _, candidate, _ in record.timing.triples] or list(record.timing.candidate_ns)


def noise_of(record: RunRecord) -> Noise | None:
    """A against A′ in this run; without a baseline, neighbouring steps of the strategy itself. None: under 3 pairs."""
    if record.timing is None:
        return None
    if record.timing.triples:
        logs = triple_logs(record.timing.triples)[1]
    else:
        times = record.timing.candidate_ns
        logs = [math.log(after) - math.log(before) for before, after in zip(times[::2], times[1::2], strict=False)]
    if len(logs) < 3:
        return None
    interval = student(logs)
    floor = relative(floor_of(interval))
    return Noise(
        difference=relative(interval.mean),
        low=relative(interval.low),
        high=relative(interval.high),
        floor=floor,
        count=interval.count,
        too_noisy=floor > NOISE_LIMIT,
    )


def relative_time(mine: Side, other: Side) -> tuple[Interval, float, Basis] | None:
    """log(my step time / the other's): interval, noise floor as a logarithm, and how it was measured.

    None when either has no times. Paired through the baseline where both ran against the same one.
    """
    one, two = mine.record.timing, other.record.timing
    if one is None or two is None or mine.noise is None or other.noise is None:
        return None
    floors = [math.log1p(side.noise.floor) for side in (mine, other) if side.noise]
    if one.triples and one.baseline == other.name:
        return student(triple_logs(one.triples)[0]), floors[0], Basis.PAIRED
    if two.triples and two.baseline == mine.name:
        return -student(triple_logs(two.triples)[0]), floors[1], Basis.PAIRED
    floor = math.hypot(*floors)
    if one.triples and two.triples and one.baseline == two.baseline:
        return welch(triple_logs(one.triples)[0], triple_logs(two.triples)[0]), floor, Basis.VIA_BASELINE
    mine_logs = [math.log(ns) for ns in candidate_times(mine.record)]
    other_logs = [math.log(ns) for ns in candidate_times(other.record)]
    return welch(mine_logs, other_logs), floor, Basis.SEPARATE_JOBS


def time_change(mine: Side, other: Side) -> Change | None:
    """Relative change of the step time."""
    return _step_change(mine, other, inverse=False)


def rate_change(mine: Side, other: Side) -> Change | None:
    """Relative change of the throughput: the same measurement, the other way up."""
    return _step_change(mine, other, inverse=True)


def _step_change(mine: Side, other: Side, *, inverse: bool) -> Change | None:
    found = None if mine.name == other.name else relative_time(mine, other)
    if found is None:
        return None
    interval, floor, basis = found
    if mine.no_time_reason or (other.no_time_reason and basis is not Basis.PAIRED):
        verdict = Verdict.NOT_JUDGED
    else:
        verdict = judge(interval, floor)
    return change_of(-interval if inverse else interval, floor, basis, verdict, other.name)


def latency_change(mine: Side, other: Side) -> Change | None:
    """Relative change of the request latency; the floor comes from the odd against the even baseline samples."""
    if mine.name == other.name or mine.record.latency is None:
        return None
    logs = [math.log(ns) for ns in mine.record.latency.candidate_ns]
    paired = mine.record.baseline == other.name and bool(mine.record.latency.baseline_ns)
    if paired:
        base = [math.log(ns) for ns in mine.record.latency.baseline_ns]
    elif other.record.latency is not None:
        base = [math.log(ns) for ns in other.record.latency.candidate_ns]
    else:
        return None
    if len(logs) < 2 or len(base) < 4:
        return None
    in_turn = paired and len(logs) == len(base)  # blocks have the baseline's requests twice
    interval = student([one - two for one, two in zip(logs, base, strict=True)]) if in_turn else welch(logs, base)
    floor = floor_of(student([after - before for before, after in zip(base[::2], base[1::2], strict=False)]))
    # A wide floor leaves small changes open; one that is twice as large is no noise.
    shaky = relative(floor) > NOISE_LIMIT and abs(interval.mean) <= 2 * floor
    unsound = mine.no_time_reason == "oversubscribed" or shaky
    verdict = Verdict.NOT_JUDGED if unsound else judge(interval, floor)
    return change_of(interval, floor, Basis.PAIRED if paired else Basis.SEPARATE_JOBS, verdict, other.name)


def peak_of(record: RunRecord) -> tuple[int, int] | None:
    """(highest peak of any rank, largest residue of any rank) in bytes: with its error another rank may be fuller."""
    if not record.memory:
        return None
    return max(m.peak_bytes for m in record.memory), max(abs(m.residue_bytes) for m in record.memory)


def memory_quantity(mine: Side, other: Side | None) -> Quantity:
    """Peak memory of the fullest rank; no difference is claimed up to the two residues together."""
    peak = peak_of(mine.record)
    if peak is None:
        return Quantity(value=None)
    base = peak_of(other.record) if other is not None and other.name != mine.name else None
    change = None
    if other is not None and base is not None and base[0] > 0:
        error = (abs(peak[1]) + abs(base[1])) / base[0]
        difference = peak[0] / base[0] - 1
        verdict = Verdict.BETTER if difference < 0 else Verdict.WORSE
        change = Change(
            against=other.name,
            difference=difference,
            low=difference - error,
            high=difference + error,
            floor=error,
            count=None,
            basis=Basis.RESIDUE,
            verdict=Verdict.WITHIN_NOISE if abs(difference) <= error else verdict,
        )
    return Quantity(value=float(peak[0]), error=float(abs(peak[1])), change=change)


def fraction_change(
    mine: tuple[float | None, list[float]],
    other: tuple[float | None, list[float]],
    against: str,
    *,
    higher_is_better: bool = False,
    least: float = 0.0,
) -> Change | None:
    """Change of a share of the step, in points, from (summary step, all profiled steps) of each side.

    `least`: what the clocks cannot tell apart, as a share. With fewer than two steps on a side nothing is judged.
    """
    if mine[0] is None or other[0] is None:
        return None
    difference = mine[0] - other[0]
    if len(mine[1]) < 2 or len(other[1]) < 2:
        interval, verdict = None, Verdict.NOT_JUDGED
    else:
        interval = welch(mine[1], other[1])
        verdict = judge(-interval if higher_is_better else interval, least)
        if verdict is not Verdict.WITHIN_NOISE and (difference > 0) != (interval.mean > 0):
            verdict = Verdict.WITHIN_NOISE
    return Change(
        against=against,
        difference=difference,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        floor=least,
        count=None if interval is None else interval.count,
        basis=Basis.PROFILED_STEPS,
        verdict=verdict,
    )


def judge(interval: Interval, floor: float) -> Verdict:
    """Lower is better; `floor` as a logarithm or share, like the interval."""
    if interval.low <= 0 <= interval.high or abs(interval.mean) <= floor:
        return Verdict.WITHIN_NOISE
    return Verdict.BETTER if interval.mean < 0 else Verdict.WORSE


def change_of(interval: Interval, floor: float, basis: Basis, verdict: Verdict, against: str) -> Change:
    """An interval of log ratios as a relative change."""
    return Change(
        against=against,
        difference=relative(interval.mean),
        low=relative(interval.low) if math.isfinite(interval.low) else None,
        high=relative(interval.high) if math.isfinite(interval.high) else None,
        floor=relative(floor),
        count=interval.count,
        basis=basis,
        verdict=verdict,
    )
