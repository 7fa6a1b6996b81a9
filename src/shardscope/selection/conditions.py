"""Under which conditions the order would turn: measured where possible, else predicted from the rescaled ledger."""

from collections.abc import Mapping, Sequence

from shardscope.selection.claims import Prediction, StrategyResult
from shardscope.selection.comparison import relative_time
from shardscope.selection.decision import Opportunity
from shardscope.selection.ranking import Order
from shardscope.selection.rescale import Scaled, predictions, scaled_ledger
from shardscope.selection.terms import Constraint, Standing, Verdict
from shardscope.workload.spec import WorkloadSpec

__all__ = ["opportunities", "predicted", "scale"]


def scale(row: StrategyResult, spec: WorkloadSpec) -> Scaled | None:
    """The row's ledger on its measured step time, or None without either."""
    if row.ledger is None or row.step_ns.value is None or not row.time_evidence:
        return None
    return scaled_ledger(row.ledger, row.step_ns.value, spec)


def predicted(order: Order, name: str, against: str, scales: Mapping[str, Scaled | None]) -> tuple[Prediction, ...]:
    """Where `name` and `against` would change places. Empty when they are tied now or a ledger cannot be rescaled."""
    mine, other = scales.get(name), scales.get(against)
    change = order.change(name, against) if name != against else None
    found = relative_time(order.sides[name], order.sides[against]) if change is not None else None
    if mine is None or other is None or change is None or found is None:
        return ()
    if order.rows[name].standing is not Standing.ELIGIBLE:
        return ()
    if change.verdict not in (Verdict.BETTER, Verdict.WORSE):
        return ()
    # Step times of two jobs differ by drift as well: put mine on the other's clock by their paired ratio.
    return predictions(mine.at_time(other.step / (1 + change.difference)), other, against)


def opportunities(
    order: Order, chosen: str, scales: Mapping[str, Scaled | None]
) -> tuple[tuple[Opportunity, ...], tuple[str, ...]]:
    """(what would change the answer `chosen`, strategies that no predicted change puts in its place).

    In this order: more memory, less, another limit, then what is predicted.
    """
    eligible = [row for row in order.rows.values() if row.standing is Standing.ELIGIBLE]
    passing = [row.name for row in eligible if row.passes]
    measured = [
        _raised_cap(order, chosen, passing, eligible),
        _lowered_cap(order, chosen, eligible),
        _moved_limit(order, chosen, eligible),
    ]
    turning, never = _predicted(order, chosen, eligible, scales)
    return (*(found for found in measured if found is not None), *turning), never


def _raised_cap(
    order: Order, chosen: str, passing: Sequence[str], eligible: Sequence[StrategyResult]
) -> Opportunity | None:
    over = [row.name for row in eligible if row.failing == (Constraint.MEMORY,)]
    for name, choice in order.walk([*passing, *over]):
        if choice in over and choice == name and order.faster(name, chosen):
            peak = order.peak(name) or 0.0
            return Opportunity(by="cap_raised", name=name, value=peak, change=order.change(name, chosen))
    return None


def _lowered_cap(order: Order, chosen: str, eligible: Sequence[StrategyResult]) -> Opportunity | None:
    peak = order.peak(chosen)
    if peak is None:
        return None
    smaller = [
        row.name
        for row in eligible
        if not [c for c in row.failing if c is not Constraint.MEMORY] and (order.peak(row.name) or peak) < peak
    ]
    name = order.choose(smaller)[0]
    change = order.change(name, chosen) if name is not None else None
    return Opportunity(by="cap_lowered", name=name, value=peak, change=change)


def _moved_limit(order: Order, chosen: str, eligible: Sequence[StrategyResult]) -> Opportunity | None:
    """The fastest one that fails a single constraint other than memory and beats the choice."""
    others = [row for row in eligible if len(row.failing) == 1 and row.failing != (Constraint.MEMORY,)]
    beating = [row for row in others if row.failing != (Constraint.CONVERGENCE,) and order.faster(row.name, chosen)]
    for name in order.rankable([row.name for row in beating]):
        check = next(check for check in order.rows[name].checks if check.constraint is order.rows[name].failing[0])
        if check.value is not None:
            return Opportunity(
                by="limit_moved",
                name=name,
                value=check.value,
                constraint=check.constraint,
                change=order.change(name, chosen),
            )
    return None


def _predicted(
    order: Order, chosen: str, eligible: Sequence[StrategyResult], scales: Mapping[str, Scaled | None]
) -> tuple[list[Opportunity], tuple[str, ...]]:
    """(the nearest change of each kind that puts another strategy in place of the choice, those for which none does).

    A strategy that fails nothing but the communication limit counts once the bandwidth lets it pass as well.
    """
    nearest: dict[str, tuple[float, float, str]] = {}
    never = []
    for row in eligible:
        needed = _bandwidth_to_pass(row)
        found = predicted(order, row.name, chosen, scales) if row.name != chosen else ()
        if not found or needed is None:
            continue
        takes = False
        for prediction in found:
            factor = prediction.factor
            if prediction.outcome != "overtakes" or not factor or (needed > 1 and prediction.by != "bandwidth"):
                continue
            if needed > 1:
                if factor < 1:
                    continue
                factor = max(factor, needed)
            takes = True
            near = (max(factor, 1 / factor), factor, row.name)
            nearest[prediction.by] = min(near, nearest.get(prediction.by, near))
        if not takes:
            never.append(row.name)
    order_of_kinds = [by for by in ("bandwidth", "micro_batches", "batch") if by in nearest]
    turning = [Opportunity(by=by, name=nearest[by][2], value=nearest[by][1], predicted=True) for by in order_of_kinds]
    return turning, tuple(never)


def _bandwidth_to_pass(row: StrategyResult) -> float | None:
    """How many times as fast transfers must be for `row` to meet every constraint; None: they alone do not do."""
    if row.passes:
        return 1.0
    if row.failing != (Constraint.COMMUNICATION,):
        return None
    remedies = [remedy for check in row.checks for remedy in check.remedies if remedy.what == "bandwidth"]
    return remedies[0].value if remedies else None
