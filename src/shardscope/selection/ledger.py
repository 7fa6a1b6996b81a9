"""What selection takes from the ledger: the summary step averaged over ranks, and shares of the step by step."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from shardscope.attribution.result import Attribution, StepRow
from shardscope.errors import ResultError
from shardscope.selection.claims import Blame, LedgerMean
from shardscope.vocabulary import Axis, Kind

__all__ = ["Shares", "blame", "mean_ledger", "shares_by_step", "step_rows"]


@dataclass(frozen=True)
class Shares:
    """Shares of one step, in [0, 1]. None: not measurable, or undefined (overlap without communication)."""

    communication: float
    transfer: float | None
    stall: float | None
    bubble: float | None
    overlap: float | None


def step_rows(result: Attribution, step: int | None) -> list[StepRow]:
    """The rows of one step, one per rank that has it."""
    return [row for rank in result.ranks for row in rank.steps if row.step == step]


def mean_ledger(result: Attribution) -> LedgerMean:
    """Average the summary step over its ranks. The parts still add up to the mean step.

    Raises ResultError when no rank has the summary step.
    """
    rows = step_rows(result, result.summary_step)
    if not rows:
        raise ResultError(f"attribution: no rank has the summary step {result.summary_step}; attribute the run again")
    return _average(rows, result.summary_step, result.clock.residual_ns)


def shares_by_step(result: Attribution) -> list[Shares]:
    """The shares of every complete step, averaged over ranks as in `mean_ledger`; outliers are left out."""
    ranks = len(result.ranks)
    steps = {row.step for rank in result.ranks for row in rank.steps}
    shares = []
    for step in sorted(steps, key=lambda number: -1 if number is None else number):
        rows = step_rows(result, step)
        if len(rows) == ranks and all(row.complete and not row.outlier for row in rows):
            shares.append(shares_of(_average(rows, step, result.clock.residual_ns)))
    return shares


def shares_of(ledger: LedgerMean) -> Shares:
    """The shares that strategies are compared by."""
    step, waiting, transfer = ledger.step_ns, ledger.waiting_total_ns, ledger.transfer_ns
    return Shares(
        communication=ledger.communication_ns / step,
        transfer=None if transfer is None else transfer / step,
        stall=None if waiting is None else (waiting + (ledger.bubble_ns or 0)) / step,
        bubble=None if ledger.bubble_ns is None else ledger.bubble_ns / step,
        overlap=ledger.overlapped_ns / ledger.busy_ns if ledger.busy_ns else None,
    )


def blame(mine: LedgerMean, other: LedgerMean, against: str, mine_ns: float, other_ns: float) -> Blame:
    """Difference of two steps by cause: the shares of the summary steps, laid on the measured step times in ns.

    The profiler, and whatever else went on, makes the profiled step longer; that is taken to stretch all parts alike.
    Waiting and transfer are apart only where both ledgers know them.
    """
    mine, other = _stretched(mine, mine_ns), _stretched(other, other_ns)
    communication = mine.communication_ns - other.communication_ns
    bubble = (mine.bubble_ns or 0) - (other.bubble_ns or 0)
    scheduling = mine.host_ns - other.host_ns + mine.copies_ns - other.copies_ns
    compute = mine.compute_ns - other.compute_ns
    transfer = stall = None
    causes = {"compute": compute, "scheduling": scheduling}
    if mine.transfer_ns is not None and other.transfer_ns is not None:
        transfer = mine.transfer_ns - other.transfer_ns
        stall = (mine.waiting_total_ns or 0) - (other.waiting_total_ns or 0) + bubble
        causes |= {"transfer": transfer, "stall": stall}
    else:
        causes |= {"communication": communication, "bubble": bubble}
    grown = {str(kind): ns - other.attributed_ns.get(kind, 0) for kind, ns in mine.attributed_ns.items()}
    grown |= {"bubble": bubble, "compute": compute}
    grown |= {"copies": mine.copies_ns - other.copies_ns, "host": mine.host_ns - other.host_ns}
    part = max(grown, key=lambda name: grown[name])
    return Blame(
        against=against,
        transfer_ns=transfer,
        stall_ns=stall,
        scheduling_ns=scheduling,
        compute_ns=compute,
        communication_ns=communication,
        bubble_ns=bubble,
        total_ns=mine.step_ns - other.step_ns,
        most=max(causes, key=lambda cause: causes[cause]),
        part=part,
        part_ns=grown[part],
    )


def _stretched(ledger: LedgerMean, step_ns: float) -> LedgerMean:
    by = step_ns / ledger.step_ns
    return structs.replace(
        ledger,
        step_ns=step_ns,
        compute_ns=ledger.compute_ns * by,
        attributed_ns={kind: ns * by for kind, ns in ledger.attributed_ns.items()},
        waiting_ns=None if ledger.waiting_ns is None else {kind: ns * by for kind, ns in ledger.waiting_ns.items()},
        copies_ns=ledger.copies_ns * by,
        bubble_ns=None if ledger.bubble_ns is None else ledger.bubble_ns * by,
        host_ns=ledger.host_ns * by,
    )


def _average(rows: list[StepRow], step: int | None, residual: int | None) -> LedgerMean:
    return LedgerMean(
        step=step,
        ranks=len(rows),
        step_ns=_mean(row.window_ns for row in rows),
        compute_ns=_mean(row.compute_ns for row in rows),
        attributed_ns=_mean_by_kind([row.attributed_ns for row in rows]),
        attributed_by_axis_ns=_mean_by_axis([row.attributed_by_kind_axis_ns for row in rows]),
        waiting_ns=_waiting(rows),
        copies_ns=_mean(row.copies_exposed_ns for row in rows),
        bubble_ns=_bubble(rows),
        host_ns=_mean(row.host_other_ns for row in rows),
        busy_ns=_mean(sum(row.busy_ns.values()) for row in rows),
        overlapped_ns=_mean(sum(row.overlapped_ns.values()) for row in rows),
        residual_ns=residual,
        bounds=any(row.bounds for row in rows),
        flags=tuple(dict.fromkeys(flag for row in rows for flag in row.flags)),
        host_cause=max(rows, key=lambda row: row.host_other_ns / (row.window_ns or 1)).host_cause,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _mean_by_kind(maps: list[dict[Kind, int]]) -> dict[Kind, float]:
    kinds = [kind for kind in Kind if any(kind in found for found in maps)]
    return {kind: _mean(found.get(kind, 0) for found in maps) for kind in kinds}


def _mean_by_axis(maps: list[dict[Kind, dict[Axis, int]]]) -> dict[Kind, dict[Axis, float]]:
    axes: Mapping[Kind, list[Axis]] = {
        kind: [axis for axis in Axis if any(axis in found.get(kind, {}) for found in maps)] for kind in Kind
    }
    return {
        kind: {axis: _mean(found.get(kind, {}).get(axis, 0) for found in maps) for axis in found_axes}
        for kind, found_axes in axes.items()
        if found_axes
    }


def _waiting(rows: list[StepRow]) -> dict[Kind, float] | None:
    """None as soon as one rank that communicates does not know what it waited for."""
    known: list[dict[Kind, int]] = []
    for row in rows:
        if row.attributed_wait_ns is not None:
            known.append(row.attributed_wait_ns)
        elif any(row.attributed_ns.values()):
            return None
        else:
            known.append({})
    return _mean_by_kind(known)


def _bubble(rows: list[StepRow]) -> float | None:
    """Null on every rank means no pipeline, or a bubble that could not be measured; one known rank is enough."""
    if all(row.bubble_ns is None for row in rows):
        return None
    return _mean(row.bubble_ns or 0 for row in rows)
