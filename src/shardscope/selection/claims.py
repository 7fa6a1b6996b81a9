"""The claims about one strategy, each with the numbers it rests on: the parts that decision.json is made of.

Times are nanoseconds, sizes are bytes, shares and relative differences are fractions (0.05 is 5 %). None: not measured,
never zero. A difference is signed as value minus baseline; whether that is good is said by its verdict.
"""

from shardscope.attribution.result import HostCause
from shardscope.measure.record import Environment, Failure, Parity, ProfilerCost, RankMemory, RankState, TraceFile
from shardscope.selection.audit_claims import AuditRow, Claim, Suspect, Volume, WireCheck
from shardscope.selection.terms import Basis, CheckStatus, Constraint, Standing, Verdict
from shardscope.vocabulary import Axis, Kind

__all__ = [
    "AuditRow",
    "Blame",
    "Change",
    "Check",
    "Claim",
    "Convergence",
    "LedgerMean",
    "Noise",
    "Outdone",
    "Prediction",
    "Quantity",
    "Remedy",
    "RunFacts",
    "StrategyResult",
    "Suspect",
    "Volume",
    "WireCheck",
]


class Change(Claim, kw_only=True, frozen=True):
    """A difference against another strategy. Relative for times, rates and sizes; in absolute points for fractions."""

    against: str
    difference: float
    low: float | None  # 95 % interval
    high: float | None
    floor: float | None  # differences up to this are what noise, or the residue, looks like
    count: int | None
    basis: Basis
    verdict: Verdict


class Quantity(Claim, kw_only=True, frozen=True):
    """One figure of one strategy with its change against the strategy that all are compared with."""

    value: float | None
    error: float | None = None
    change: Change | None = None


class Noise(Claim, kw_only=True, frozen=True):
    """A against A′: two measurements of the same baseline. `floor` is the widest difference the interval contains."""

    difference: float
    low: float
    high: float
    floor: float
    count: int
    too_noisy: bool  # floor above 10 %: times of this run are not ranked


class Convergence(Claim, kw_only=True, frozen=True):
    """Losses finite, last quarter at least 5 % below the first, and parity with one process."""

    converged: bool
    finite: bool
    first_quarter: float | None
    last_quarter: float | None
    fall: float | None
    steps: int


class LedgerMean(Claim, kw_only=True, frozen=True):
    """The summary step, averaged over ranks: step = compute + Σ attributed + copies + bubble + host, in ns."""

    step: int | None
    ranks: int
    step_ns: float
    compute_ns: float
    attributed_ns: dict[Kind, float]
    attributed_by_axis_ns: dict[Kind, dict[Axis, float]]
    waiting_ns: dict[Kind, float] | None  # the part of attributed spent waiting; None where it cannot be known
    copies_ns: float
    bubble_ns: float | None
    host_ns: float
    busy_ns: float
    overlapped_ns: float
    residual_ns: int | None  # clock error; None with one rank
    bounds: bool
    flags: tuple[str, ...]
    host_cause: HostCause | None = None  # of the rank with the largest share of host time, where that exceeds a tenth

    @property
    def communication_ns(self) -> float:
        """Σ attributed."""
        return sum(self.attributed_ns.values())

    @property
    def waiting_total_ns(self) -> float | None:
        """Attributed waiting of all kinds."""
        if self.waiting_ns is None:
            return None if self.communication_ns else 0.0
        return sum(self.waiting_ns.values())

    @property
    def transfer_ns(self) -> float | None:
        """Attributed transfer of all kinds."""
        waiting = self.waiting_total_ns
        return None if waiting is None else self.communication_ns - waiting

    @property
    def hidden_transfer_ns(self) -> float | None:
        """Transfer under compute: the ledger knows only all hidden time, so this is transfer's share of the exposed."""
        transfer = self.transfer_ns
        if transfer is None:
            return None
        return self.overlapped_ns * (transfer / self.communication_ns if self.communication_ns else 0.0)


class Blame(Claim, kw_only=True, frozen=True):
    """Where the step differs from that of the strategy compared with, in ns (positive: more time).

    The shares of the two profiled summary steps, laid on the measured step times.
    """

    against: str
    transfer_ns: float | None
    stall_ns: float | None  # waiting and bubble
    scheduling_ns: float  # host and copies
    compute_ns: float
    communication_ns: float  # transfer and waiting together
    bubble_ns: float
    total_ns: float
    most: str  # the largest cause: transfer, stall, communication, bubble, scheduling, compute
    part: str  # the single part of the ledger that grew most: a kind, "bubble", "copies", "host" or "compute"
    part_ns: float


class Remedy(Claim, kw_only=True, frozen=True):
    """One change that would make a failing constraint pass.

    what: "limit" (move the limit to `value`, in the constraint's unit), "bandwidth" (transfers `value` times as fast),
    "micro_batches" (`value` per step), "ceiling" (free transfers are not enough: they make it `value` times as fast),
    "floor" (free transfers are not enough: they leave a share of `value`).
    """

    what: str
    value: float
    predicted: bool


class Check(Claim, kw_only=True, frozen=True):
    """One constraint and one strategy, in the constraint's unit. `excess`: how far it fails, relative to the limit."""

    constraint: Constraint
    limit: float
    value: float | None
    status: CheckStatus
    marginal: bool = False  # closer to the limit than the value's error
    excess: float | None = None
    why: str | None = None  # not judged: "noise", "oversubscribed", "not_measured"; convergence: what failed
    remedies: tuple[Remedy, ...] = ()


class Prediction(Claim, kw_only=True, frozen=True):
    """The ledger rescaled, against another strategy.

    by: "bandwidth" (transfer times divided by the factor), "batch" (compute times the factor), "micro_batches" (bubble
    times m / factor). outcome: "overtakes", "overtaken" (the other overtakes it), "never" (behind at any factor).
    """

    by: str
    against: str
    outcome: str
    factor: float | None  # with "never": the furthest that was looked at
    behind: float | None = None  # with "never": by how much its throughput stays below the other's there


class RunFacts(Claim, kw_only=True, frozen=True):
    """What the run said about itself that the evidence shows."""

    started_at: str
    finished_at: str
    environment: Environment | None
    parity: Parity | None
    profiler: ProfilerCost | None
    memory: tuple[RankMemory, ...]
    planned_state: tuple[RankState, ...]
    planned_bubble: float | None
    parameter_count: int | None
    failure: Failure | None
    last_failure: Failure | None
    last_failure_reason: str | None
    traces: tuple[TraceFile, ...]
    timing_mode: str | None
    mfu: float | None  # model FLOP/s ÷ measured matmul peak of all ranks
    flops_per_s: float | None
    loss_first: float | None
    loss_last: float | None
    notes: tuple[str, ...]


class Outdone(Claim, kw_only=True, frozen=True):
    """What is chosen at this strategy's own peak instead of it, and that one's throughput against it."""

    by: str
    peak_bytes: float
    change: Change | None


class StrategyResult(Claim, kw_only=True, frozen=True):
    """One row of the report."""

    name: str
    display_name: str
    standing: Standing
    reason: str | None
    shards: tuple[str, ...]
    run: RunFacts
    time_evidence: bool  # False: too noisy or oversubscribed, times are not ranked
    no_time_reason: str | None  # "noise", "oversubscribed", "not_measured"
    noise: Noise | None = None
    peak_bytes: Quantity = Quantity(value=None)
    throughput: Quantity = Quantity(value=None)  # tokens/s
    step_ns: Quantity = Quantity(value=None)  # median
    step_p95_ns: float | None = None
    step_count: int = 0
    base_step_ns: float | None = None  # median of the baseline in the same processes
    request_ns: Quantity = Quantity(value=None)  # median
    request_p95_ns: float | None = None
    request_count: int = 0
    communication_fraction: Quantity = Quantity(value=None)
    transfer_fraction: Quantity = Quantity(value=None)
    stall_fraction: Quantity = Quantity(value=None)
    bubble_fraction: Quantity = Quantity(value=None)  # of the step
    overlap_fraction: Quantity = Quantity(value=None)
    convergence: Convergence | None = None
    ledger: LedgerMean | None = None
    blame: Blame | None = None
    audit: tuple[AuditRow, ...] = ()
    volumes: tuple[Volume, ...] = ()
    wire: WireCheck | None = None
    checks: tuple[Check, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    outdone: Outdone | None = None
    speedup: Change | None = None  # throughput against one process with a rank's threads

    @property
    def ran(self) -> bool:
        """Whether there are figures at all."""
        return self.ledger is not None

    @property
    def passes(self) -> bool:
        """Eligible, and no constraint fails."""
        eligible = self.standing is Standing.ELIGIBLE
        return eligible and all(check.status is not CheckStatus.FAILED for check in self.checks)

    @property
    def failing(self) -> tuple[Constraint, ...]:
        """The constraints it fails."""
        return tuple(check.constraint for check in self.checks if check.status is CheckStatus.FAILED)
