"""Runs that happened elsewhere: what their attributions say, and how they compare with the first of them.

There is no record of an imported run, so noise is judged from step to step within its traces: what changes from job to
job is not in them, and a difference is claimed with that reservation.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardscope.attribution.result import ATTRIBUTION_FILE, Attribution, StepRow, load_attribution
from shardscope.errors import ResultError
from shardscope.measure.record import RUN_FILE, RunRecord, load_run
from shardscope.selection.claims import Change, LedgerMean, Quantity
from shardscope.selection.comparison import candidate_times, fraction_change, peak_of
from shardscope.selection.ledger import Shares, mean_ledger, shares_by_step, shares_of, step_rows
from shardscope.selection.statistics import relative, welch
from shardscope.selection.terms import Basis, Verdict

__all__ = ["ImportedResult", "read_imported", "share_quantities", "step_quantity"]

NS_PER_S = 1e9
LEAST_STEPS = 3  # fewer steps on a side show no spread to judge a difference by


@dataclass(frozen=True, kw_only=True)
class ImportedResult:
    """One imported run. `step_times_ns`: the slowest rank of every step that all its ranks have whole, in order."""

    name: str
    attribution: Attribution
    ledger: LedgerMean
    shares: Shares
    shares_by_step: tuple[Shares, ...]
    step_times_ns: tuple[int, ...]
    record: RunRecord | None  # only where the folder is a run of our own

    @property
    def device(self) -> str:
        """What ran the kernels, as the traces name it."""
        return ", ".join(sorted({rank.device for rank in self.attribution.ranks}))

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, None where no trace says."""
        return max((rank.world_size for rank in self.attribution.ranks if rank.world_size), default=None)

    @property
    def step_ns(self) -> float:
        """Median over the steps of the slowest rank's time; the summary step's where no step is whole on all ranks."""
        rows = step_rows(self.attribution, self.attribution.summary_step)
        return float(statistics.median(self.step_times_ns or [max(row.window_ns for row in rows)]))

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of the fullest rank. Traces do not say; a record does."""
        peak = peak_of(self.record) if self.record is not None else None
        return None if peak is None else peak[0]

    @property
    def tokens_per_s(self) -> float | None:
        """Training throughput. Traces do not say; a record does."""
        times = candidate_times(self.record) if self.record is not None else []
        if not times or self.record is None or self.record.timing is None:
            return None
        return self.record.timing.tokens_per_step * NS_PER_S / statistics.median(times)


def read_imported(name: str, tables: Path, source: Path) -> ImportedResult:
    """Read the attribution in `tables`; `source` is where the traces are. Raises ResultError."""
    attribution = load_attribution(tables / ATTRIBUTION_FILE)
    if not step_rows(attribution, attribution.summary_step):
        steps = "; ".join(f"rank {rank.rank}: {_listed(rank.steps)}" for rank in attribution.ranks[:4])
        raise ResultError(
            f"imported run {name}: its ranks have no step in common ({steps}); give traces of the same steps"
        )
    ledger = mean_ledger(attribution)
    return ImportedResult(
        name=name,
        attribution=attribution,
        ledger=ledger,
        shares=shares_of(ledger),
        shares_by_step=tuple(shares_by_step(attribution)),
        step_times_ns=_step_times(attribution),
        record=load_run(source) if (source / RUN_FILE).is_file() else None,
    )


def _listed(rows: Sequence[StepRow]) -> str:
    numbers = [row.step for row in rows if row.step is not None]
    return f"steps {min(numbers)} to {max(numbers)}" if numbers else "no step marks"


def _step_times(attribution: Attribution) -> tuple[int, ...]:
    steps = list(dict.fromkeys(row.step for rank in attribution.ranks for row in rank.steps))
    times = []
    for step in steps:
        rows = step_rows(attribution, step)
        if len(rows) == len(attribution.ranks) and all(row.complete and not row.outlier for row in rows):
            times.append(max(row.window_ns for row in rows))
    return tuple(times)


def step_quantity(mine: ImportedResult, base: ImportedResult) -> Quantity:
    """The step time with its relative change against `base`; judged only with three steps on both sides."""
    if mine.name == base.name:
        return Quantity(value=mine.step_ns)
    one, two = mine.step_times_ns, base.step_times_ns
    low = high = None
    difference, verdict = mine.step_ns / base.step_ns - 1, Verdict.NOT_JUDGED
    if min(len(one), len(two)) >= LEAST_STEPS:
        interval = welch([math.log(ns) for ns in one], [math.log(ns) for ns in two])
        low, high = relative(interval.low), relative(interval.high)
        sure = not low <= 0 <= high and (difference > 0) == (interval.mean > 0)
        verdict = (Verdict.WORSE if difference > 0 else Verdict.BETTER) if sure else Verdict.WITHIN_NOISE
    change = Change(
        against=base.name, difference=difference, low=low, high=high, floor=None, count=min(len(one), len(two)),
        basis=Basis.PROFILED_STEPS, verdict=verdict,
    )  # fmt: skip
    return Quantity(value=mine.step_ns, change=change)


def share_quantities(mine: ImportedResult, base: ImportedResult) -> dict[str, Quantity]:
    """communication, transfer, stall, bubble and overlap as shares, each with its change against `base` in points."""
    clocks = sum((run.ledger.residual_ns or 0) / run.ledger.step_ns for run in (mine, base))
    found = {}
    for field in ("communication", "transfer", "stall", "bubble", "overlap"):
        value = getattr(mine.shares, field)
        change = None
        if mine.name != base.name:
            change = fraction_change(
                (value, _known(mine.shares_by_step, field)),
                (getattr(base.shares, field), _known(base.shares_by_step, field)),
                base.name,
                higher_is_better=field == "overlap",
                least=clocks if field in ("transfer", "stall", "bubble") else 0.0,
            )
        found[field] = Quantity(value=value, change=change)
    return found


def _known(steps: Sequence[Shares], field: str) -> list[float]:
    values = [getattr(step, field) for step in steps]
    return [value for value in values if value is not None]
