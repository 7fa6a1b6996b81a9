"""Choice by memory budget: which strategy to take when a rank may hold at most so much."""

from shardscope.selection.claims import Outdone, StrategyResult
from shardscope.selection.decision import Budget, BudgetEntry
from shardscope.selection.ranking import Order
from shardscope.selection.terms import Constraint, Standing

__all__ = ["budget", "outdone"]


def budget(order: Order) -> Budget:
    """Walk through the measured peaks from below; at each cap the best that meets the other constraints.

    When nobody meets the other constraints, all eligible strategies are listed and that is said.
    """
    eligible = [row for row in order.rows.values() if row.standing is Standing.ELIGIBLE and row.peak_bytes.value]
    others = {row.name: _others(row) for row in eligible}
    left_out = {name: failing for name, failing in others.items() if failing}
    names = [row.name for row in eligible if row.name not in left_out]
    ignored = not names
    if ignored:
        names = [row.name for row in eligible]
    entries = _entries(order, names)
    return Budget(
        by=order.by,
        entries=entries,
        nothing_below_bytes=min((entry.from_bytes for entry in entries), default=None),
        left_out={} if ignored else left_out,
        constraints_ignored=ignored and bool(eligible),
        unconstrained=_entries(order, [row.name for row in eligible]) if left_out and not ignored else (),
    )


def _entries(order: Order, names: list[str]) -> tuple[BudgetEntry, ...]:
    """From the largest caps down. By throughput, without choices that a better one matches in memory."""
    steps: dict[str, tuple[float, list[str]]] = {}  # choice → the cap it starts at, all that fit below the next one
    fitting: list[str] = []
    for name, best in order.walk(names):
        fitting.append(name)
        choice = best if order.by == "throughput" else name
        start = steps[choice][0] if choice in steps else order.peak(name) or 0.0
        steps[choice] = (start, list(fitting))
    entries: list[BudgetEntry] = []
    by_rate = order.by == "throughput"
    for choice, (start, fit) in reversed(steps.items()):
        if by_rate and not all(order.needs_less(choice, entry.choice) for entry in entries):
            continue
        above = entries[-1] if by_rate and entries else None
        entries.append(
            BudgetEntry(
                choice=choice,
                from_bytes=start,
                below_bytes=above.from_bytes if above else None,
                throughput=order.rows[choice].throughput.value,
                tied=tuple(other for other in fit if other != choice and order.tied(other, choice)) if by_rate else (),
                above=above.choice if above else None,
                above_change=order.change(above.choice, choice) if above else None,
            )
        )
    return tuple(entries)


def outdone(order: Order, found: Budget, name: str) -> Outdone | None:
    """The fastest that the budget chooses and that needs no more memory than `name` beyond the errors.

    None where `name` is chosen somewhere.
    """
    peak = order.peak(name)
    if peak is None or found.by == "memory" or name in found.left_out or not order.rows[name].time_evidence:
        return None
    if order.rows[name].standing is not Standing.ELIGIBLE or any(entry.choice == name for entry in found.entries):
        return None
    for entry in found.entries:
        if not order.needs_less(name, entry.choice):
            by_peak = order.peak(entry.choice) or 0.0
            return Outdone(by=entry.choice, peak_bytes=by_peak, change=order.change(entry.choice, name))
    return None


def _others(row: StrategyResult) -> tuple[Constraint, ...]:
    return tuple(constraint for constraint in row.failing if constraint is not Constraint.MEMORY)
