"""Constraints: who passes, by how much each fails, and the smallest change that would make it pass."""

import math
from collections.abc import Iterable

from shardscope.selection.claims import Check, Remedy, StrategyResult
from shardscope.selection.rescale import Scaled
from shardscope.selection.terms import CheckStatus, Constraint, Constraints, Standing

__all__ = ["Constraints", "checks", "nearest_miss"]

MB = 1e6
MS = 1e6


def checks(row: StrategyResult, constraints: Constraints, scaled: Scaled | None) -> tuple[Check, ...]:
    """Judge one strategy that ran against every constraint that is set.

    `scaled` predicts what faster transfers or more micro-batches would do; None where the ledger cannot tell.
    """
    found: list[Check] = []
    if constraints.memory_cap_mb is not None:
        found.append(_memory(row, constraints.memory_cap_mb))
    if constraints.min_throughput_tokens_per_s is not None:
        found.append(_throughput(row, constraints.min_throughput_tokens_per_s, scaled))
    if constraints.max_step_time_ms is not None:
        found.append(_step_time(row, constraints.max_step_time_ms, scaled))
    if constraints.max_request_latency_ms is not None:
        found.append(_latency(row, constraints.max_request_latency_ms))
    if constraints.max_communication_fraction is not None:
        found.append(_communication(row, constraints.max_communication_fraction, scaled))
    if constraints.require_convergence:
        found.append(_convergence(row))
    return tuple(found)


def nearest_miss(rows: Iterable[StrategyResult]) -> str | None:
    """The eligible strategy whose worst failure is smallest, relative to its limit; fewer failures win a tie."""
    missed = [row for row in rows if row.standing is Standing.ELIGIBLE and row.failing]
    if not missed:
        return None
    return min(missed, key=_distance).name


def _distance(row: StrategyResult) -> tuple[float, int]:
    failed = [check for check in row.checks if check.status is CheckStatus.FAILED]
    return max(math.inf if check.excess is None else check.excess for check in failed), len(failed)


def _check(
    constraint: Constraint,
    limit: float,
    value: float,
    *,
    at_least: bool = False,
    error: float = 0.0,
    remedies: tuple[Remedy, ...] = (),
) -> Check:
    failed = value < limit if at_least else value > limit
    missing = limit - value if at_least else value - limit
    # A cap that surely holds it holds its error as well.
    enough = value + error if constraint is Constraint.MEMORY else value
    return Check(
        constraint=constraint,
        limit=limit,
        value=value,
        status=CheckStatus.FAILED if failed else CheckStatus.PASSED,
        marginal=abs(missing) <= error,
        excess=(missing / limit if limit else math.inf) if failed else None,
        remedies=(Remedy(what="limit", value=enough, predicted=False), *remedies) if failed else (),
    )


def _not_judged(constraint: Constraint, limit: float, value: float | None, why: str) -> Check:
    return Check(constraint=constraint, limit=limit, value=value, status=CheckStatus.NOT_JUDGED, why=why)


def _memory(row: StrategyResult, limit: float) -> Check:
    if row.peak_bytes.value is None:
        return _not_judged(Constraint.MEMORY, limit, None, "not_measured")
    return _check(Constraint.MEMORY, limit, row.peak_bytes.value / MB, error=(row.peak_bytes.error or 0) / MB)


def _throughput(row: StrategyResult, limit: float, scaled: Scaled | None) -> Check:
    value = row.throughput.value
    if value is None or not row.time_evidence:
        return _not_judged(Constraint.THROUGHPUT, limit, value, row.no_time_reason or "not_measured")
    error = value * (row.noise.floor if row.noise else 0)
    remedies = scaled.to_speed(limit / value) if scaled is not None and value < limit else ()
    return _check(Constraint.THROUGHPUT, limit, value, at_least=True, error=error, remedies=remedies)


def _step_time(row: StrategyResult, limit: float, scaled: Scaled | None) -> Check:
    ns = row.step_ns.value
    if ns is None or not row.time_evidence:
        why = row.no_time_reason or "not_measured"
        return _not_judged(Constraint.STEP_TIME, limit, None if ns is None else ns / MS, why)
    value = ns / MS
    error = value * (row.noise.floor if row.noise else 0)
    remedies = scaled.to_speed(value / limit) if scaled is not None and value > limit else ()
    return _check(Constraint.STEP_TIME, limit, value, error=error, remedies=remedies)


def _latency(row: StrategyResult, limit: float) -> Check:
    ns = row.request_ns.value
    if ns is None or row.no_time_reason == "oversubscribed":
        value = None if ns is None else ns / MS
        return _not_judged(Constraint.LATENCY, limit, value, row.no_time_reason or "not_measured")
    change = row.request_ns.change
    error = ns / MS * (change.floor or 0) if change is not None else 0.0
    return _check(Constraint.LATENCY, limit, ns / MS, error=error)


def _communication(row: StrategyResult, limit: float, scaled: Scaled | None) -> Check:
    value = row.communication_fraction.value
    if value is None or row.no_time_reason == "oversubscribed":
        return _not_judged(Constraint.COMMUNICATION, limit, value, row.no_time_reason or "not_measured")
    remedies = scaled.to_communication(limit) if scaled is not None and value > limit else ()
    return _check(Constraint.COMMUNICATION, limit, value, remedies=remedies)


def _convergence(row: StrategyResult) -> Check:
    found = row.convergence
    if found is None:
        return _not_judged(Constraint.CONVERGENCE, 1.0, None, "not_measured")
    if found.converged:
        return Check(constraint=Constraint.CONVERGENCE, limit=1.0, value=1.0, status=CheckStatus.PASSED)
    why = "not_finite" if not found.finite else "parity" if row.standing is Standing.DISQUALIFIED else "no_fall"
    return Check(constraint=Constraint.CONVERGENCE, limit=1.0, value=0.0, status=CheckStatus.FAILED, why=why)
