"""What the conditions report claims, each claim with its numbers. Units as in `claims`; `log_…`: natural logarithms."""

from pathlib import Path

from shardscope.measure.record import Environment, RateCheck
from shardscope.measure.settings import MeasureSettings
from shardscope.records import load_record, save_record
from shardscope.selection.claims import Claim, Prediction
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "AxisResult",
    "ConditionsResult",
    "Crossover",
    "GridCell",
    "GridResult",
    "Holds",
    "Statement",
    "SweptPoint",
    "SweptStrategy",
    "load",
    "save",
]

SCHEMA_VERSION = 1


class SweptStrategy(Claim, kw_only=True, frozen=True):
    """One strategy at one point. Step times are on the clock of the baseline's steps of all jobs at that point.

    status: "ok"; "baseline" (timed in the others' jobs); "not_applicable", "out_of_memory", "failed", "disqualified",
    "incomparable" (other ranks, device, backend or rate than asked for), "no_time" (too few steps, or more ranks than
    cores), "missing".
    """

    name: str
    status: str
    reason: str | None = None
    log_ratio: float | None = None  # step time against the baseline's, with its 95 % interval
    log_low: float | None = None
    log_high: float | None = None
    log_floor: float = 0.0  # differences up to this are what noise looks like
    pairs: int = 0
    step_ns: float | None = None
    step_low_ns: float | None = None
    step_high_ns: float | None = None
    predicted_ns: float | None = None
    error: float | None = None  # predicted / measured − 1
    ratio_error: float | None = None  # the same of the ratio to the baseline, which drift between jobs leaves alone

    @property
    def timed(self) -> bool:
        """It ran correctly and has a step time that may be compared."""
        return self.status in ("ok", "baseline") and self.log_ratio is not None


class SweptPoint(Claim, kw_only=True, frozen=True):
    """All strategies at one value. value None: the machine's own rate."""

    workload: str
    value: float | None
    base: bool
    strategies: tuple[SweptStrategy, ...]
    fastest: str | None
    tied: tuple[str, ...]  # with the fastest, within the noise
    lead: float | None  # of the fastest over the next one: relative step time
    lead_low: float | None
    lead_high: float | None
    predicted_fastest: str | None  # by the rescaled ledger, among those predicted
    rate_check: RateCheck | None = None
    rate_mbit: float | None = None

    def strategy(self, name: str) -> SweptStrategy | None:
        """The row called `name`."""
        return next((row for row in self.strategies if row.name == name), None)

    @property
    def leaders(self) -> tuple[str, ...]:
        """The fastest and all that are tied with it."""
        return () if self.fastest is None else (self.fastest, *self.tied)


class Crossover(Claim, kw_only=True, frozen=True):
    """`below` is faster below, `above` above. The interval holds the crossing for the 95 % intervals at the points.

    estimate, high None: it lies between `low` and the machine's own rate.
    """

    below: str
    above: str
    low: float
    high: float | None
    estimate: float | None
    predicted: float | None  # where the rescaled ledgers cross between measured points
    error: float | None  # predicted / estimate − 1
    leads: bool = True  # each of the two is the fastest, or tied with it, somewhere


class Statement(Claim, kw_only=True, frozen=True):
    """A prediction of the summary, held against the sweep.

    source: "strategies" (section 5), "changes" (what would change the answer), "never" (its last sentence).
    verdict: "supported", "contradicted", "undecided" (no point beyond it, or ties), "unchecked" (cannot be, here).
    """

    source: str
    verdict: str
    name: str
    against: str
    prediction: Prediction | None = None  # None: of "never"
    at: float | None = None  # on the axis: where the order should turn
    at_high: float | None = None  # rates: the two ledgers give two
    seen_at: float | None = None  # the point that decides
    seen_difference: float | None = None  # step time of `name` against `against` there, relative
    seen_low: float | None = None
    seen_high: float | None = None
    why: str | None = (
        None  # of undecided and unchecked: "no_point", "no_points", "ties", "ties_all", "faster_link", "not_emulated"
    )


class AxisResult(Claim, kw_only=True, frozen=True):
    """One factor. parameter: (strategy, its parameter) where only that strategy was measured; None: all were."""

    name: str
    own: float | None  # the base's value
    parameter: tuple[str, str] | None
    points: tuple[SweptPoint, ...]
    crossovers: tuple[Crossover, ...]
    statements: tuple[Statement, ...]
    unchecked: str | None = None  # why no rate could be emulated

    @property
    def leading(self) -> tuple[Crossover, ...]:
        """The crossovers of strategies that lead somewhere."""
        return tuple(crossing for crossing in self.crossovers if crossing.leads)


class GridCell(Claim, kw_only=True, frozen=True):
    """The leaders at one pair of values."""

    x: float | None
    y: float | None
    leaders: tuple[str, ...]
    predicted_fastest: str | None


class GridResult(Claim, kw_only=True, frozen=True):
    """Two factors at once."""

    x: str
    y: str
    cells: tuple[GridCell, ...]


class Holds(Claim, kw_only=True, frozen=True):
    """Where the summary's recommendation is the fastest, or tied with it, and where it is not."""

    name: str
    leads: tuple[str, ...]  # workloads
    ties: tuple[str, ...]
    behind: tuple[tuple[str, str], ...]  # (workload, the fastest there)


class ConditionsResult(Claim, kw_only=True, frozen=True):
    """Everything in reports/conditions.md."""

    schema: int = SCHEMA_VERSION
    workload: WorkloadSpec
    baseline: str
    strategies: tuple[str, ...]
    titles: dict[str, str]  # display names
    environment: Environment | None
    measure: MeasureSettings  # at the points
    base_measure: MeasureSettings
    axes: tuple[AxisResult, ...]
    grid: GridResult | None
    holds: Holds | None
    first: str  # ISO 8601
    last: str
    median_error: float | None  # of all predictions, by size
    greatest_error: float | None
    median_ratio_error: float | None
    greatest_ratio_error: float | None
    right: int  # points whose predicted fastest leads, or is tied
    judged: int  # points with a fastest and a predicted fastest, the base left out


def save(result: ConditionsResult, path: Path) -> None:
    """Write `path` whole or not at all. Raises ResultError when it cannot be written."""
    save_record(result, path)


def load(path: Path) -> ConditionsResult:
    """Read the result. Raises ResultError when it is missing or of another version."""
    return load_record(
        path,
        ConditionsResult,
        schema=SCHEMA_VERSION,
        called="the result of a sweep",
        remedy="remove it and run again",
        if_absent="run the workflow again",
    )
