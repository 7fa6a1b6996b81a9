"""decision.json: everything the report claims about one workload, each claim with the numbers it rests on.

Units as in `claims`: nanoseconds, bytes, fractions. None: not measured, never zero.
"""

from pathlib import Path

from shardscope.measure.record import Environment
from shardscope.records import load_record, save_record
from shardscope.selection.claims import Change, Claim, StrategyResult
from shardscope.selection.node_claims import NodeReport
from shardscope.selection.terms import Constraint, Constraints
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "AllCoresClaim",
    "Budget",
    "BudgetEntry",
    "Decision",
    "NextStep",
    "Opportunity",
    "Recommendation",
    "Rejected",
    "load",
    "save",
]

SCHEMA_VERSION = 1


class BudgetEntry(Claim, kw_only=True, frozen=True):
    """The choice for a memory cap per rank of at least `from_bytes` and below `below_bytes` (None: no upper end)."""

    choice: str
    from_bytes: float
    below_bytes: float | None
    throughput: float | None
    tied: tuple[str, ...]  # as fast within the noise, and fitting too
    above: str | None = None  # the choice for larger caps
    above_change: Change | None = None  # its throughput against this one


class Budget(Claim, kw_only=True, frozen=True):
    """by: "throughput" (the fastest that fits) or "memory" (times are no evidence: what fits from where)."""

    by: str
    entries: tuple[BudgetEntry, ...]
    nothing_below_bytes: float | None
    left_out: dict[str, tuple[Constraint, ...]]  # fail another constraint than the cap
    constraints_ignored: bool  # nobody meets the other constraints, so all are listed
    unconstrained: tuple[BudgetEntry, ...] = ()  # by memory and speed alone, where constraints leave some out


class Rejected(Claim, kw_only=True, frozen=True):
    """Faster than the recommended strategy, but failing constraints."""

    name: str
    change: Change
    failing: tuple[Constraint, ...]


class Recommendation(Claim, kw_only=True, frozen=True):
    """The answer. `name` None: no strategy meets the constraints."""

    name: str | None
    by: str  # "throughput", "memory"
    no_time_reason: str | None
    passing: tuple[str, ...]  # fastest first
    tied: tuple[str, ...]  # with the fastest, within the noise
    runner_up: str | None
    runner_up_change: Change | None  # throughput of the runner-up against the recommended
    rejected: tuple[Rejected, ...]
    unranked: tuple[str, ...]  # meet the constraints but are too noisy to rank
    nearest_miss: str | None


class AllCoresClaim(Claim, kw_only=True, frozen=True):
    """One process with all cores (or one device), against the recommended strategy, else the baseline."""

    threads: int
    step_ns: float
    throughput: float
    peak_bytes: int | None
    change: Change  # of throughput
    fits: bool | None  # within the memory cap; None: peak unknown
    passes: bool  # all constraints that can be judged
    pays: bool  # faster beyond the noise, fits and passes: parallelism does not pay


class Opportunity(Claim, kw_only=True, frozen=True):
    """What would change the answer.

    by: "cap_raised", "cap_lowered", "limit_moved"; predicted: "bandwidth", "micro_batches", "batch".
    """

    by: str
    name: str | None  # the strategy that would be chosen; None: nothing would fit
    value: float  # bytes for caps, the limit for limits, a count of micro-batches, else a factor
    constraint: Constraint | None = None
    change: Change | None = None
    predicted: bool = False


class NextStep(Claim, kw_only=True, frozen=True):
    """What to verify next, and the command that does it."""

    why: str
    targets: tuple[str, ...]
    command: str


class Decision(Claim, kw_only=True, frozen=True):
    """Everything that is said about one workload."""

    schema: int = SCHEMA_VERSION
    workload: WorkloadSpec
    baseline: str
    compared_with: str | None
    baseline_reason: str | None  # why compared_with is not the baseline
    world_size: int | None
    environment: Environment | None
    mixed_environment: tuple[str, ...]  # facts that differ between runs
    constraints: Constraints
    strategies: tuple[StrategyResult, ...]  # in the order of the configuration
    failed: tuple[str, ...]
    stale: tuple[str, ...]  # a later rerun failed, the earlier result is shown
    recommendation: Recommendation
    all_cores: AllCoresClaim | None
    budget: Budget
    opportunities: tuple[Opportunity, ...]
    never_overtakes: tuple[
        str, ...
    ] = ()  # compared by prediction; no bandwidth, batch or micro-batches puts them first
    next_step: NextStep
    node: NodeReport | None = None  # predicted for named hardware; None: too little was measured

    def strategy(self, name: str) -> StrategyResult:
        """The row called `name`."""
        return next(row for row in self.strategies if row.name == name)


def save(decision: Decision, path: Path) -> None:
    """Write `path` whole or not at all. Raises ResultError when it cannot be written."""
    save_record(decision, path)


def load(path: Path) -> Decision:
    """Read a decision. Raises ResultError when it is missing or of another version."""
    return load_record(
        path,
        Decision,
        schema=SCHEMA_VERSION,
        called="a decision",
        remedy="remove it and run again",
        if_absent="run the workflow again",
    )
