"""The predictions that the summary prints, held against what the sweep measured.

A prediction says that at some value of a factor two strategies change places. It is contradicted when the order at a
point beyond that value is, beyond the noise, the one it denies, or has turned already at a point before it; it is
supported when a point beyond it shows the order it claims. Anything else is undecided.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from shardscope.selection.claims import Prediction
from shardscope.selection.decision import Decision
from shardscope.selection.statistics import relative
from shardscope.selection.sweep import RATE
from shardscope.selection.sweep_claims import Holds, Statement, SweptPoint
from shardscope.selection.sweep_compare import PointTimes
from shardscope.selection.sweep_predict import Base, effective_mbit

__all__ = ["AXIS_OF", "holds", "statements"]

AXIS_OF = {"batch": "global_batch", "micro_batches": "micro_batches", "bandwidth": RATE}
Place = tuple[float | None, str]  # value, workload


def statements(
    decision: Decision, axis: str, places: list[Place], times: Mapping[str, PointTimes], bases: Mapping[str, Base]
) -> list[Statement]:
    """Every prediction about `axis` that the summary makes of two swept strategies, with its verdict."""
    found = []
    for source, name, prediction in _said(decision):
        if AXIS_OF.get(prediction.by) != axis or not {name, prediction.against} <= set(bases):
            continue
        found.append(_judged(decision, source, name, prediction, places, times, bases))
    chosen = decision.recommendation.name
    if chosen is not None and chosen in bases and axis in (RATE, "micro_batches"):
        kept = decision.never_overtakes if not any(by.predicted for by in decision.opportunities) else ()
        found += [_never(name, chosen, decision, axis, places, times) for name in kept if name in bases]
    return found


def _never(
    name: str, chosen: str, decision: Decision, axis: str, places: list[Place], times: Mapping[str, PointTimes]
) -> Statement:
    """ "No bandwidth and no larger number of micro-batches puts it in the place of the recommended one." """
    own = float(decision.workload.micro_batches)
    statement = Statement(source="never", verdict="undecided", name=name, against=chosen)
    claims = [
        (times[workload].claim(name, chosen), workload)
        for value, workload in places
        if value is not None and (axis == RATE or value > own) and times[workload].difference(name, chosen) is not None
    ]
    for claim, verdict in ((-1, "contradicted"), (1, "supported")):
        seen = next((workload for found, workload in claims if found == claim), None)
        if seen is not None:
            return _seen(statement, verdict, seen, places, times)
    return _with(statement, why="ties_all" if claims else "no_points")


def holds(name: str | None, points: list[SweptPoint]) -> Holds | None:
    """Where the recommendation `name` is the fastest, tied, or behind. None where it was not swept."""
    ranked = [point for point in points if point.fastest is not None and point.strategy(name or "") is not None]
    if name is None or not ranked:
        return None
    return Holds(
        name=name,
        leads=tuple(point.workload for point in ranked if point.leaders == (name,)),
        ties=tuple(point.workload for point in ranked if name in point.leaders and len(point.leaders) > 1),
        behind=tuple((p.workload, p.fastest or "") for p in ranked if name not in p.leaders),
    )


def _said(decision: Decision) -> Iterator[tuple[str, str, Prediction]]:
    """(where in the summary, strategy, prediction), each once."""
    chosen = decision.recommendation.name
    for row in decision.strategies:
        for prediction in row.predictions:
            yield "strategies", row.name, prediction
    if chosen is None:
        return
    for found in decision.opportunities:
        if found.predicted and found.name is not None:
            yield (
                "changes",
                found.name,
                Prediction(by=found.by, against=chosen, outcome="overtakes", factor=found.value),
            )


def _judged(
    decision: Decision,
    source: str,
    name: str,
    prediction: Prediction,
    places: list[Place],
    times: Mapping[str, PointTimes],
    bases: Mapping[str, Base],
) -> Statement:
    statement = Statement(
        source=source, verdict="undecided", name=name, against=prediction.against, prediction=prediction
    )
    span = _span(decision, name, prediction, bases)
    own = _own(decision, prediction)
    if span is None or prediction.factor is None:
        return _with(statement, verdict="unchecked", why="not_emulated")
    low, high = span
    statement = _with(statement, at=low, at_high=high if high != low else None)
    upwards = prediction.factor > own if prediction.by == "micro_batches" else prediction.factor > 1
    if prediction.by == "bandwidth" and upwards:
        return _with(statement, verdict="unchecked", why="faster_link")
    supported = contradicted = None
    ties = False
    for value, workload in places:
        if value is None or workload not in times:
            continue
        beyond = value >= high if upwards else value <= low
        before = (own < value < low) if upwards else (high < value < own)
        if not (beyond or before):
            continue
        claim = times[workload].claim(name, prediction.against)
        wanted = _wanted(prediction, beyond=beyond)
        if claim == 0:
            ties = ties or beyond
        elif claim != wanted:
            contradicted = contradicted or workload
        elif beyond:
            supported = supported or workload
    if contradicted or supported:
        return _seen(
            statement, "contradicted" if contradicted else "supported", contradicted or supported, places, times
        )
    return _with(statement, why="ties" if ties else "no_point")


def _wanted(prediction: Prediction, *, beyond: bool) -> int:
    """The claim of the strategy against the other that the prediction needs there: −1 faster, 1 slower."""
    turned = -1 if prediction.outcome == "overtakes" else 1
    if prediction.outcome == "never":
        return 1
    return turned if beyond else -turned


def _own(decision: Decision, prediction: Prediction) -> float:
    if prediction.by == "micro_batches":
        return float(decision.workload.micro_batches)
    return float(decision.workload.global_batch) if prediction.by == "batch" else float("inf")


def _span(
    decision: Decision, name: str, prediction: Prediction, bases: Mapping[str, Base]
) -> tuple[float, float] | None:
    """Where on the axis the order should turn; "never": anywhere beyond today's value. A rate is known as two."""
    factor = prediction.factor or 1.0
    if prediction.by == "batch":
        return (factor * decision.workload.global_batch,) * 2
    if prediction.by == "micro_batches":
        never = prediction.outcome == "never"
        at = decision.workload.micro_batches + 1 if never else factor
        return float(at), float(at)
    rates = [effective_mbit(bases[which]) for which in (name, prediction.against)]
    known = [rate * factor for rate in rates if rate is not None]
    return (min(known), max(known)) if len(known) == 2 else None


def _seen(
    statement: Statement, verdict: str, workload: str | None, places: list[Place], times: Mapping[str, PointTimes]
) -> Statement:
    value = next(value for value, found in places if found == workload)
    difference = times[workload or ""].difference(statement.name, statement.against)
    assert difference is not None
    return _with(
        statement,
        verdict=verdict,
        seen_at=value,
        seen_difference=relative(difference[0].mean),
        seen_low=relative(difference[0].low),
        seen_high=relative(difference[0].high),
    )


def _with(statement: Statement, **changes: object) -> Statement:
    return structs.replace(statement, **changes)
