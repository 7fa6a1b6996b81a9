"""Section 5: benefit, cost and conditions of each strategy, every clause from its own numbers."""

from dataclasses import dataclass
from typing import Any

from shardscope.report.answer import constraint_value, sent_bytes
from shardscope.report.sentences import Sentence, sentence
from shardscope.report.tables import why_no_figures
from shardscope.selection.claims import Quantity, StrategyResult
from shardscope.selection.decision import BudgetEntry, Decision
from shardscope.selection.terms import CheckStatus, Standing, Verdict

__all__ = ["Lines", "strategy_lines"]

FIGURES = ("peak_bytes", "throughput", "request_ns")
LEAST_STATE = 0.99  # a smaller difference of the state is the plan's rounding


@dataclass(frozen=True)
class Lines:
    """One strategy's three lines, or the reason why there are none."""

    name: str
    display_name: str
    reason: Sentence | None
    benefit: list[Sentence]
    cost: list[Sentence]
    conditions: list[Sentence]


def strategy_lines(decision: Decision) -> list[Lines]:
    """All strategies but the reference, in the order of the configuration."""
    shown = [row for row in decision.strategies if row.standing is not Standing.REFERENCE]
    return [_lines(decision, row) for row in shown]


def _lines(decision: Decision, row: StrategyResult) -> Lines:
    if row.standing is not Standing.ELIGIBLE:
        return Lines(row.name, row.display_name, why_no_figures(row), [], [], [])
    base = decision.strategy(decision.compared_with) if decision.compared_with is not None else None
    if row.name == decision.compared_with:
        benefit, cost = [sentence("base.benefit", row=row)], _base_cost(row)
    else:
        benefit, cost = _benefit(row, base), _cost(row, base)
    return Lines(row.name, row.display_name, None, benefit, cost, _conditions(decision, row))


def _is(quantity: Quantity, verdict: Verdict) -> bool:
    return quantity.change is not None and quantity.change.verdict is verdict


def _changes(row: StrategyResult, verdict: Verdict) -> list[Sentence]:
    found = []
    for field in FIGURES:
        quantity: Quantity = getattr(row, field)
        if _is(quantity, verdict):
            found.append(sentence(f"effect.{field}", quantity=quantity, change=quantity.change))
    return found


def _benefit(row: StrategyResult, base: StrategyResult | None) -> list[Sentence]:
    against = base.name if base is not None else None
    found = _changes(row, Verdict.BETTER) or [sentence("benefit.none", against=against, **_judged(row))]
    mine, theirs = _state(row), _state(base)
    if _is(row.peak_bytes, Verdict.WITHIN_NOISE) and mine and theirs and mine < LEAST_STATE * theirs:
        found.append(sentence("benefit.state", mine=mine, less=1 - mine / theirs, against=against))
    return found


def _state(row: StrategyResult | None) -> int:
    """Bytes of parameters, gradients and optimizer that the fullest rank holds after a step; exact. 0: not measured."""
    memory = row.run.memory if row is not None else ()
    return max((m.parameter_bytes + m.gradient_bytes + m.optimizer_bytes for m in memory), default=0)


def _judged(row: StrategyResult) -> dict[str, list[Any]]:
    """Which of the three figures were judged, and for each reason those that were not."""
    judged: list[str] = []
    unjudged: dict[str, list[str]] = {}
    for field in FIGURES:
        change = getattr(row, field).change
        if change is not None and change.verdict is not Verdict.NOT_JUDGED:
            judged.append(field)
            continue
        why = row.no_time_reason or ("not_measured" if change is None else "noise")
        if field != "throughput" and why != "oversubscribed":
            why = "latency_noise"
            if change is None:
                why = "few_requests" if field == "request_ns" and row.request_count else "not_measured"
        unjudged.setdefault(why, []).append(field)
    return {"judged": judged, "unjudged": list(unjudged.items())}


def _cost(row: StrategyResult, base: StrategyResult | None) -> list[Sentence]:
    against = base.name if base is not None else None
    worse = _changes(row, Verdict.WORSE)
    found = list(worse)
    if not worse:
        found.append(sentence("cost.none", against=against, **_judged(row)))
        shares = [
            sentence(f"cost.{field}", value=quantity.value, change=quantity.change)
            for field in ("transfer_fraction", "stall_fraction")
            if _is(quantity := getattr(row, field), Verdict.WORSE)
        ]
        if shares:
            found.append(sentence("cost.inside", items=shares, against=against))
    if _is(row.throughput, Verdict.WORSE) and row.blame is not None:
        found.append(
            sentence(
                "blame.causes",
                blame=row.blame,
                change=row.step_ns.change,
                saved=_is(row.peak_bytes, Verdict.BETTER),
                stall_noise=_is(row.stall_fraction, Verdict.WITHIN_NOISE),
            )
        )
        mine, theirs = sent_bytes(row), sent_bytes(base)
        if base is not None and mine is not None and theirs is not None and mine > theirs:
            calls = [sum(volume.count for volume in each.volumes) for each in (row, base)]
            found.append(sentence("cost.sends", mine=mine, theirs=theirs, calls=calls, against=base.name))
    elif _is(row.throughput, Verdict.NOT_JUDGED) and worse:
        found.append(sentence("cost.not_judged", reason=row.no_time_reason or "noise"))
    return found


def _base_cost(row: StrategyResult) -> list[Sentence]:
    """What the strategy compared with pays itself: its largest part besides compute."""
    ledger = row.ledger
    if ledger is None:
        return [sentence("cost.none", against=row.name, **_judged(row))]
    parts = {str(kind): ns for kind, ns in ledger.attributed_ns.items()}
    parts |= {"copies": ledger.copies_ns, "bubble": ledger.bubble_ns or 0.0, "host": ledger.host_ns}
    part = max(parts, key=lambda name: parts[name])
    return [sentence("base.cost", row=row, part=part, share=parts[part] / ledger.step_ns)]


def _conditions(decision: Decision, row: StrategyResult) -> list[Sentence]:
    entry = next((found for found in decision.budget.entries if found.choice == row.name), None)
    found = []
    if decision.budget.by == "throughput":
        found += _by_budget(decision, row, entry)
    else:
        found.append(sentence("when.fits", row=row))
    found += _by_use(row)
    found += [
        sentence(f"predicted.{p.by}", prediction=p, batch=round((p.factor or 0) * decision.workload.global_batch))
        for p in row.predictions
    ]
    return found


def _by_budget(decision: Decision, row: StrategyResult, entry: BudgetEntry | None) -> list[Sentence]:
    found = []
    failing = [check for check in row.checks if check.status is CheckStatus.FAILED]
    if row.name in decision.budget.left_out:
        items = [
            sentence("failing", check=check, **constraint_value(check.constraint, check.value, check.limit))
            for check in failing
            if check.constraint in decision.budget.left_out[row.name]
        ]
        found.append(sentence("when.left_out", items=items))
    elif entry is not None:
        cap = decision.constraints.memory_cap_mb
        above_cap = cap is not None and entry.from_bytes > cap * 1e6
        found.append(sentence("when.budget", entry=entry, cap=cap, above_cap=above_cap))
        if entry.above is not None and entry.above_change is not None:
            found.append(sentence("not_when.above", entry=entry, change=entry.above_change))
    elif row.outdone is not None:
        found.append(sentence("when.outdone", row=row, outdone=row.outdone, change=row.outdone.change))
    elif not row.time_evidence:
        found.append(sentence("when.unranked", row=row))
    return found


def _by_use(row: StrategyResult) -> list[Sentence]:
    """Training against serving: throughput and request latency can point in opposite directions."""
    latency, throughput = row.request_ns, row.throughput
    if _is(latency, Verdict.WORSE) and _is(throughput, Verdict.BETTER):
        return [sentence("when.offline", latency=latency.change, throughput=throughput.change)]
    if _is(latency, Verdict.WORSE):
        return [sentence("not_when.serving", change=latency.change, value=latency.value)]
    if _is(latency, Verdict.BETTER) and not _is(throughput, Verdict.BETTER):
        return [sentence("when.serving", change=latency.change, value=latency.value)]
    return []
