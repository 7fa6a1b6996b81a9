"""Choice by memory budget: which strategy to take when a rank may hold at most so much."""

from msgspec import structs

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
    """From the largest caps down."""
    entries: list[BudgetEntry] = []
    fitting: list[str] = []
    for name, best in order.walk(names):
        fitting.append(name)
        choice = best if order.by == "throughput" else name
        start = order.peak(name) or 0.0
        if entries and entries[-1].choice == choice:
            start = entries.pop().from_bytes
        elif entries and order.by == "throughput":
            change = order.change(choice, entries[-1].choice)
            entries[-1] = structs.replace(entries[-1], below_bytes=start, above=choice, above_change=change)
        tied = [other for other in fitting if other != choice and order.tied(other, choice)]
        entries.append(
            BudgetEntry(
                choice=choice,
                from_bytes=start,
                below_bytes=None,
                throughput=order.rows[choice].throughput.value,
                tied=tuple(tied) if order.by == "throughput" else (),
            )
        )
    return tuple(reversed(entries))


def outdone(order: Order, found: Budget, name: str) -> Outdone | None:
    """What the budget chooses at the peak of `name` instead of it; None where `name` is chosen somewhere."""
    peak = order.peak(name)
    if peak is None or found.by == "memory" or name in found.left_out or not order.rows[name].time_evidence:
        return None
    if order.rows[name].standing is not Standing.ELIGIBLE or any(entry.choice == name for entry in found.entries):
        return None
    for entry in found.entries:
        if entry.from_bytes <= peak and (entry.below_bytes is None or peak < entry.below_bytes):
            by_peak = order.peak(entry.choice) or 0.0
            return Outdone(by=entry.choice, peak_bytes=by_peak, change=order.change(entry.choice, name))
    return None


def _others(row: StrategyResult) -> tuple[Constraint, ...]:
    return tuple(constraint for constraint in row.failing if constraint is not Constraint.MEMORY)
