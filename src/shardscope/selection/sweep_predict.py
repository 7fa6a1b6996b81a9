"""The base's ledger, rescaled to another point: step = compute + exposed transfer + waiting + bubble + copies + host.

Each part of the base's profiled step is laid on its measured step time (selection.rescale) and then scaled:
- compute and waiting × F, the ratio of model FLOPs (workload.shapes);
- transfer, of each kind, × the ratio of its bytes in the two plans. At an emulated rate it takes at least the bytes
  that the backend sends over the loopback · 8 / rate (measure.network: all ranks and directions share it);
- hidden transfer keeps its share of all transfer, but no more than the time it is hidden for today × F;
- bubble × F · m / m′, the closed form (p−1)/(m+p−1) of GPipe and 1F1B (arXiv 2104.04473) at constant work;
- copies × the ratio of parameters; host time × the ratio of layers · micro-batches: it is spent per call.
What this leaves out (an operator's fixed cost, caches, the optimizer inside compute) is the error that is printed.
"""

from dataclasses import dataclass

from shardscope.measure.record import Plan, RunRecord
from shardscope.selection.audit import sent_factor
from shardscope.selection.claims import LedgerMean
from shardscope.vocabulary import Axis, Kind

__all__ = ["Base", "effective_mbit", "planned_sent_bytes", "predicted_ns"]

_Key = tuple[Kind, Axis]


@dataclass(frozen=True)
class Base:
    """What a strategy's prediction starts from: its ledger, its run, and its step on the base point's clock."""

    ledger: LedgerMean
    record: RunRecord
    step_ns: float


def predicted_ns(base: Base, there: RunRecord, plan: Plan | None) -> float | None:
    """The step at the point where `there` (a run of any strategy) was measured, with this strategy's `plan` there.

    None where a part is not known: FLOPs, a plan, what of the communication is transfer, or what the backend sends.
    """
    ledger, old = base.ledger, base.record
    transfer, hidden, waiting = ledger.transfer_ns, ledger.hidden_transfer_ns, ledger.waiting_total_ns
    flops = _ratio(_flops(there), _flops(old))
    if transfer is None or hidden is None or waiting is None or flops is None or plan is None or old.plan is None:
        return None
    by = base.step_ns / ledger.step_ns
    spec, spec_old = there.workload, old.workload
    micro = spec.micro_batches / spec_old.micro_batches
    moved = _transfer(ledger, transfer + hidden, old.plan, plan)
    rate = there.environment.rate_mbit if there.environment is not None else None
    if rate is not None:
        backend = there.environment.backend if there.environment is not None else "gloo"
        sent = planned_sent_bytes(plan, backend)
        if sent is None:
            return None
        wire = sent * 8e3 / rate / by  # ns of the base's profiled step
        native = old.environment is None or old.environment.rate_mbit is None
        moved = max(moved, wire) if native else wire
    share = hidden / (transfer + hidden) if transfer + hidden else 0.0
    exposed = moved - min(moved * share, hidden * flops)
    parameters = _ratio(plan.parameter_count, old.plan.parameter_count) or 1.0
    calls = micro * spec.layers / spec_old.layers
    return by * (
        flops * (ledger.compute_ns + waiting)
        + exposed
        + flops / micro * (ledger.bubble_ns or 0.0)
        + parameters * ledger.copies_ns
        + calls * ledger.host_ns
    )


def planned_sent_bytes(plan: Plan, backend: str) -> float | None:
    """Bytes of one step that all ranks together send; None for a backend whose algorithms are not known."""
    total = 0.0
    for expected in plan.collectives:
        factor = sent_factor(expected.kind, len(expected.group), backend)
        if factor is None:
            return None
        total += factor * expected.bytes
    return total


def effective_mbit(base: Base) -> float | None:
    """The rate at which the base's transfers moved its bytes, exposed and hidden; None without either."""
    ledger = base.ledger
    transfer, hidden = ledger.transfer_ns, ledger.hidden_transfer_ns
    if transfer is None or hidden is None or base.record.plan is None or base.record.environment is None:
        return None
    time_ns = (transfer + hidden) * base.step_ns / ledger.step_ns
    sent = planned_sent_bytes(base.record.plan, base.record.environment.backend)
    return sent * 8e3 / time_ns if time_ns > 0 and sent else None


def _transfer(ledger: LedgerMean, moving: float, old: Plan, new: Plan) -> float:
    """`moving` ns of transfer, each kind by its share of the exposed, scaled with the bytes of its axes."""
    before, after = _bytes(old), _bytes(new)
    scaled = whole = 0.0
    for kind, axes in ledger.attributed_by_axis_ns.items():
        waiting = (ledger.waiting_ns or {}).get(kind, 0.0)
        exposed = max(0.0, ledger.attributed_ns.get(kind, 0.0) - waiting)
        total = sum(axes.values())
        for axis, ns in axes.items():
            part = exposed * ns / total if total else 0.0
            whole += part
            scaled += part * (_ratio(after.get((kind, axis)), before.get((kind, axis))) or 1.0)
    return moving * scaled / whole if whole else moving


def _bytes(plan: Plan) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for expected in plan.collectives:
        key = (expected.kind, expected.axis)
        found[key] = found.get(key, 0) + expected.bytes
    return found


def _flops(record: RunRecord) -> float | None:
    return record.timing.flops_per_step if record.timing is not None else None


def _ratio(new: float | None, old: float | None) -> float | None:
    return new / old if new and old else None
