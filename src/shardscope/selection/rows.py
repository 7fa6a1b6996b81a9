"""One row per strategy: its figures, each with the change against the strategy that all are compared with."""

import statistics
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from shardscope.measure.record import Environment, RunRecord
from shardscope.selection.audit import audit, convergence, volumes
from shardscope.selection.audit_blame import blamed
from shardscope.selection.claims import Blame, Change, LedgerMean, Quantity, RunFacts, StrategyResult
from shardscope.selection.comparison import (
    Side,
    candidate_times,
    fraction_change,
    latency_change,
    memory_quantity,
    rate_change,
    time_change,
)
from shardscope.selection.ledger import Shares, blame, mean_ledger, shares_by_step, shares_of
from shardscope.selection.statistics import percentile
from shardscope.selection.volumes import wire_check

__all__ = ["build_row"]

NS_PER_S = 1e9


def build_row(side: Side, base: Side | None, single: Side | None) -> StrategyResult:
    """Everything about one run but its constraints and predictions. `base` None: nothing usable to compare with."""
    row = StrategyResult(
        name=side.name,
        display_name=side.record.strategy.display_name,
        standing=side.standing,
        reason=side.reason,
        shards=side.record.strategy.shards,
        run=_facts(side.record),
        time_evidence=side.no_time_reason is None,
        no_time_reason=side.no_time_reason,
        noise=side.noise,
    )
    if side.attribution is None:
        return row
    other = base if side.usable else None
    ledger = mean_ledger(side.attribution)
    sent = volumes(side.attribution, side.record.environment.backend if side.record.environment else None)
    base_ledger = mean_ledger(other.attribution) if other is not None and other.attribution is not None else None
    compare = other is not None and other.name != side.name
    times = _times(side, other)
    fault = _blame(side, other, times, ledger, base_ledger) if compare and other and base_ledger else None
    return structs.replace(
        row,
        ledger=ledger,
        convergence=convergence(side.record),
        audit=blamed(
            audit(side.record.plan.collectives if side.record.plan else (), side.attribution),
            side.record,
            side.attribution.summary_step,
        ),
        volumes=sent,
        wire=wire_check(side.record, sent),
        peak_bytes=memory_quantity(side, other),
        blame=fault,
        speedup=rate_change(side, single) if single is not None and single.usable and side.usable else None,
        **times,
        **_shares(side, other, ledger, base_ledger),
    )


def _blame(side: Side, other: Side, times: dict[str, Any], mine: LedgerMean, theirs: LedgerMean) -> Blame | None:
    """On the baseline's step time in the same processes where there is one, else on its own median."""
    change = times["step_ns"].change if "step_ns" in times else None
    own = candidate_times(other.record)
    if change is None or not own:
        return None
    paired = times.get("base_step_ns") if other.name == side.record.baseline else None
    base = paired or float(statistics.median(own))
    return blame(mine, theirs, other.name, base * (1 + change.difference), base)


def _times(side: Side, other: Side | None) -> dict[str, Any]:
    timing, latency = side.record.timing, side.record.latency
    found: dict[str, Any] = {}
    times = candidate_times(side.record)
    if timing is not None and times:
        median = statistics.median(times)
        rate = rate_change(side, other) if other is not None else None
        step = time_change(side, other) if other is not None else None
        found["throughput"] = Quantity(value=timing.tokens_per_step * NS_PER_S / median, change=rate)
        found["step_ns"] = Quantity(value=float(median), change=step)
        found["step_p95_ns"] = percentile(times, 0.95)
        found["step_count"] = len(times)
        paired = [ns for first, _, again in timing.triples for ns in (first, again)]
        found["base_step_ns"] = float(statistics.median(paired)) if paired else None
    if latency is not None and latency.candidate_ns:
        change = latency_change(side, other) if other is not None else None
        found["request_ns"] = Quantity(value=float(statistics.median(latency.candidate_ns)), change=change)
        found["request_p95_ns"] = percentile(latency.candidate_ns, 0.95)
        found["request_count"] = len(latency.candidate_ns)
    return found


def _shares(side: Side, other: Side | None, mine: LedgerMean, base: LedgerMean | None) -> dict[str, object]:
    """The five shares of the step, in points against the base."""
    own, steps = shares_of(mine), _steps(side)
    compare = other is not None and base is not None and other.name != side.name
    theirs = shares_of(base) if compare and base is not None else None
    their_steps = _steps(other) if compare and other is not None else []
    least = sum((ledger.residual_ns or 0) / ledger.step_ns for ledger in (mine, base) if ledger is not None)

    def quantity(field: str, *, clocks: bool, higher: bool = False) -> Quantity:
        change: Change | None = None
        if theirs is not None and other is not None and not _oversubscribed(side, other):
            change = fraction_change(
                (getattr(own, field), _known(steps, field)),
                (getattr(theirs, field), _known(their_steps, field)),
                other.name,
                higher_is_better=higher,
                least=least if clocks else 0.0,
            )
        return Quantity(value=getattr(own, field), change=change)

    return {
        "communication_fraction": quantity("communication", clocks=False),
        "transfer_fraction": quantity("transfer", clocks=True),
        "stall_fraction": quantity("stall", clocks=True),
        "bubble_fraction": quantity("bubble", clocks=True),
        "overlap_fraction": quantity("overlap", clocks=False, higher=True),
    }


def _oversubscribed(*sides: Side) -> bool:
    return any(side.no_time_reason == "oversubscribed" for side in sides)


def _steps(side: Side) -> list[Shares]:
    return shares_by_step(side.attribution) if side.attribution is not None else []


def _known(steps: Sequence[Shares], field: str) -> list[float]:
    values = [getattr(step, field) for step in steps]
    return [value for value in values if value is not None]


def _facts(record: RunRecord) -> RunFacts:
    timing, plan = record.timing, record.plan
    times = candidate_times(record)
    flops = timing.flops_per_step if timing is not None else None  # None as well for an own model not counted
    rate = flops * NS_PER_S / statistics.median(times) if flops is not None and times else None
    peak = timing.matmul_peak_flops_per_s if timing is not None else None
    environment: Environment | None = record.environment
    return RunFacts(
        started_at=record.started_at,
        finished_at=record.finished_at,
        environment=environment,
        parity=record.parity,
        profiler=record.profiler,
        memory=record.memory,
        planned_state=plan.state if plan is not None else (),
        planned_bubble=plan.bubble_fraction if plan is not None else None,
        parameter_count=plan.parameter_count if plan is not None else None,
        failure=record.failure,
        last_failure=record.last_failure,
        last_failure_reason=record.last_failure_reason,
        traces=record.traces,
        timing_mode=timing.mode if timing is not None else None,
        mfu=rate / peak if rate is not None and peak else None,
        flops_per_s=rate,
        loss_first=record.losses[0] if record.losses else None,
        loss_last=record.losses[-1] if record.losses else None,
        notes=record.notes,
    )
