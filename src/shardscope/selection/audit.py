"""The gate and the audit: is the strategy correct, and did it communicate what its plan says?

Volumes per step, n ranks in the group, S as in `ExpectedCollective`; all ranks together send, with rings:
all-reduce 2(n−1)·S; all-gather, reduce-scatter, all-to-all and broadcast (n−1)·S; a message S (NCCL's tests document
the same factors per rank as bus bandwidth). gloo runs reduce-scatter as an all-reduce, which moves twice that.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence

from shardscope.attribution.result import Attribution, Calls
from shardscope.measure.record import ExpectedCollective, Parity, RunRecord
from shardscope.selection.claims import AuditRow, Convergence, Volume
from shardscope.vocabulary import Axis, Kind

__all__ = ["audit", "convergence", "passes_gate", "sent_factor", "volumes"]

LEAST_FALL = 0.05  # of the mean loss, from the first quarter of the steps to the last
Key = tuple[Kind, Axis]
_SCATTERING = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.BROADCAST)


def passes_gate(parity: Parity) -> bool:
    """Gradients at step 0 and losses over K steps agree with one process. A number that is not finite does not."""
    return all(math.isfinite(e) and e <= parity.tolerance for e in (parity.gradient_error, parity.loss_error))


def convergence(record: RunRecord) -> Convergence | None:
    """Losses finite, last quarter at least 5 % below the first, and parity; None with fewer than four losses."""
    losses = record.losses
    if len(losses) < 4 or record.parity is None:
        return None
    # JSON has no infinity: a loss that is not finite is recorded as the largest float.
    finite = all(math.isfinite(loss) and abs(loss) < sys.float_info.max for loss in losses)
    quarter = len(losses) // 4
    first = math.fsum(losses[:quarter]) / quarter if finite else None
    last = math.fsum(losses[-quarter:]) / quarter if finite else None
    fall = 1 - last / first if first and last is not None else None
    fell = fall is not None and fall >= LEAST_FALL
    return Convergence(
        converged=finite and fell and passes_gate(record.parity),
        finite=finite,
        first_quarter=first,
        last_quarter=last,
        fall=fall,
        steps=len(losses),
    )


def audit(expected: Sequence[ExpectedCollective], result: Attribution) -> tuple[AuditRow, ...]:
    """Expected against seen in the summary step, rank by rank, one row per kind and axis."""
    ranks = sorted(rank.rank for rank in result.ranks if rank.rank is not None)
    seen = {rank: _calls(result, rank) for rank in ranks}
    keys = {(e.kind, e.axis) for e in expected} | {(c.kind, c.axis) for calls in seen.values() for c in calls}
    order = {key: (list(Kind).index(key[0]), list(Axis).index(key[1])) for key in keys}
    return tuple(_audit_row(key, expected, seen) for key in sorted(keys, key=lambda k: order[k]))


def volumes(result: Attribution, backend: str | None) -> tuple[Volume, ...]:
    """Bytes of the summary step in three columns. Calls whose group or size is unknown are left to the audit."""
    groups: dict[Key, list[Calls]] = defaultdict(list)
    for rank in result.ranks:
        for call in _calls(result, rank.rank):
            # Every rank of a group sees the same collectives: count them once, on its first rank.
            if call.group and call.group[0] == rank.rank and call.bytes is not None:
                groups[(call.kind, call.axis)].append(call)
    return tuple(
        Volume(
            kind=kind,
            axis=axis,
            count=sum(call.count for call in calls),
            payload_bytes=sum(call.bytes or 0 for call in calls),
            backend_bytes=_sent(calls, backend),
            nccl_bytes=_sent(calls, "nccl") or 0.0,
        )
        for (kind, axis), calls in sorted(groups.items(), key=lambda item: list(Kind).index(item[0][0]))
    )


def _calls(result: Attribution, rank: int | None) -> list[Calls]:
    rows = [row for found in result.ranks if found.rank == rank for row in found.steps]
    return [call for row in rows if row.step == result.summary_step for call in row.calls]


def _audit_row(key: Key, expected: Sequence[ExpectedCollective], seen: dict[int, list[Calls]]) -> AuditRow:
    planned = [e for e in expected if (e.kind, e.axis) == key]
    found = {rank: [c for c in calls if (c.kind, c.axis) == key] for rank, calls in seen.items()}
    expected_count = {rank: sum(e.count for e in planned if rank in e.group) for rank in seen}
    expected_bytes = {rank: sum(e.bytes for e in planned if rank in e.group) for rank in seen}
    seen_count = {rank: sum(c.count for c in calls) for rank, calls in found.items()}
    seen_bytes = {rank: _total(calls) for rank, calls in found.items()}
    problems = [
        f"rank {rank}: expected {expected_count[rank]} with {expected_bytes[rank]} B, "
        f"seen {seen_count[rank]} with {'unknown' if seen_bytes[rank] is None else seen_bytes[rank]} B"
        for rank in seen
        if expected_count[rank] != seen_count[rank] or seen_bytes[rank] not in (None, expected_bytes[rank])
    ]
    return AuditRow(
        kind=key[0],
        axis=key[1],
        expected_count=tuple(expected_count.values()),
        seen_count=tuple(seen_count.values()),
        expected_bytes=tuple(expected_bytes.values()),
        seen_bytes=tuple(seen_bytes.values()),
        agrees=not problems,
        detail="; ".join(problems) or None,
    )


def _total(calls: list[Calls]) -> int | None:
    sizes = [call.bytes for call in calls]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _sent(calls: list[Calls], backend: str | None) -> float | None:
    """Bytes that all ranks together send; None for a backend or kind whose algorithm is not known."""
    total = 0.0
    for call in calls:
        factor = sent_factor(call.kind, len(call.group or ()), backend)
        if factor is None:
            return None
        total += factor * (call.bytes or 0)
    return total


def sent_factor(kind: Kind, ranks: int, backend: str | None) -> float | None:
    """What all ranks of a collective together send, in sizes S; None for a backend or kind that is not known."""
    if backend not in ("gloo", "nccl"):
        return None
    if kind is Kind.ALL_REDUCE or (kind is Kind.REDUCE_SCATTER and backend == "gloo"):
        return 2.0 * (ranks - 1)
    if kind in _SCATTERING:
        return float(ranks - 1)
    return 1.0 if kind is Kind.SEND_RECEIVE else None
