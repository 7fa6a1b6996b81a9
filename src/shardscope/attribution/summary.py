"""Which step the summary shows, and the parts of the result that describe ranks and collectives."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from shardscope.attribution.communication import Communication
from shardscope.attribution.flags import HostCauses, flag_outliers
from shardscope.attribution.intervals import IntArray, clip, covered_before, total, union
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.match import Matched
from shardscope.attribution.result import Clock, Collective, GroupTotal, KindNs, RankResult
from shardscope.attribution.share import Label
from shardscope.attribution.view import RankView
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["choose_step", "collective_rows", "rank_result"]

_BUS_FACTOR = {
    Kind.ALL_REDUCE: lambda n: 2 * (n - 1) / n,
    Kind.ALL_GATHER: lambda n: (n - 1) / n,
    Kind.REDUCE_SCATTER: lambda n: (n - 1) / n,
    Kind.ALL_TO_ALL: lambda n: (n - 1) / n,
}
_TICK_NS = 1000  # the coarsest clock a trace is written with


def choose_step(views: Mapping[int, RankView]) -> int | None:
    """One real step that all ranks have: the lower median of the slowest rank's step time."""
    common = set.intersection(*({step.number for step in view.steps} for view in views.values()))
    if not common:
        return None
    slowest: dict[int | None, int] = {}
    for view in views.values():
        for step in view.steps:
            slowest[step.number] = max(slowest.get(step.number, 0), step.end - step.start)
    order = sorted(common, key=lambda number: (slowest[number], -1 if number is None else number))
    return order[(len(order) - 1) // 2]


def rank_result(
    key: int, view: RankView, parts: Mapping[tuple[int, int | None], RowParts], summary: int | None
) -> RankResult:
    """All rows of one rank with their flags, and what its process groups cost in the summary step."""
    mine = [parts[key, step.number] for step in view.steps]
    causes = HostCauses(view)
    for part in mine:
        causes.flag(part)
    flag_outliers([part.row for part in mine])
    weights: dict[Evidence, int] = defaultdict(int)
    for item in view.communications:
        weights[item.evidence] += total(item.busy)
    whole = sum(weights.values())
    chosen = parts.get((key, summary))
    return RankResult(
        rank=view.rank,
        files=view.files,
        device=view.device,
        world_size=view.world_size,
        warnings=view.warnings,
        evidence_fraction={level: weights[level] / whole if whole else 0.0 for level in Evidence},
        steps=[part.row for part in mine],
        groups=_groups(view, chosen) if chosen else [],
        device_index=msgspec.UNSET if view.device_index is None else view.device_index,
    )


def _groups(view: RankView, part: RowParts) -> list[GroupTotal]:
    start, end = part.row.start_ns, part.row.start_ns + part.row.window_ns
    busy: dict[tuple[tuple[int, ...] | None, str, Axis], KindNs] = defaultdict(dict)
    attributed: dict[tuple[tuple[int, ...] | None, str, Axis], KindNs] = defaultdict(dict)
    sets: dict[Label, list[IntArray]] = defaultdict(list)
    for item in view.communications:
        sets[Label(item.kind, item.axis, item.group, item.group_name)].append(item.busy)
    for label in sorted(sets, key=str):
        spent = total(clip(union(*sets[label]), start, end))
        if spent:
            busy[label.group, label.name, label.axis][label.kind] = spent
    for i, label_ in enumerate(part.shares.labels):
        spent = part.shares.total(i, ~part.moved[i])
        if spent:
            key = (label_.group, label_.name, label_.axis)
            attributed[key][label_.kind] = attributed[key].get(label_.kind, 0) + spent
    return [
        GroupTotal(ranks=key[0], name=key[1], axis=key[2], busy_ns=busy[key], attributed_ns=attributed.get(key, {}))
        for key in sorted(busy, key=str)
    ]


def collective_rows(
    matches: Sequence[Matched], parts: Mapping[tuple[int, int | None], RowParts], clocks: Clock
) -> list[Collective]:
    """Matched collectives and pairs in order of arrival, without those of one rank alone and contradictory ones."""
    shown = [match for match in matches if not match.broken and len(match.members) > 1]
    exposed_of = _exposed_waits(shown, parts)
    rows = []
    for match in shown:
        first = next(iter(match.members.values()))
        waits: dict[str, int] | None = {}
        exposed: dict[str, int] | None = {}
        for rank, item in sorted(match.members.items()):
            if item.waits is None or (rank, match.step) not in parts:
                waits = exposed = None
                break
            waits[str(rank)] = total(item.waits)  # type: ignore[index]
            exposed[str(rank)] = exposed_of.get(id(item), 0)  # type: ignore[index]
        algbw, busbw = _bandwidth(match, first.bytes, clocks)
        rows.append(
            Collective(
                step=match.step, kind=match.kind, group=match.group, axis=first.axis, matched_by=match.matched_by,
                bytes=first.bytes, arrival_ns={str(r): i.arrival for r, i in sorted(match.members.items())},
                wait_ns=waits, exposed_wait_ns=exposed, transfer_ns=match.transfer, last_rank=match.last_rank,
                exact=match.exact, algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw,
            )
        )  # fmt: skip
    return rows


def _exposed_waits(matches: Sequence[Matched], parts: Mapping[tuple[int, int | None], RowParts]) -> dict[int, int]:
    """By identity of the event, where it waits: how much of that is under no compute of its step (ns)."""
    waiting: dict[tuple[int, int | None], list[tuple[Communication, IntArray]]] = defaultdict(list)
    for match in matches:
        for rank, item in match.members.items():
            if item.waits is not None and len(item.waits) and (rank, match.step) in parts:
                waiting[rank, match.step].append((item, item.waits))
    found: dict[int, int] = {}
    for key, items in waiting.items():
        compute = parts[key].compute
        spans = np.concatenate([waits for _, waits in items])
        hidden = covered_before(compute, spans[:, 1]) - covered_before(compute, spans[:, 0])
        bare = spans[:, 1] - spans[:, 0] - hidden
        starts = np.cumsum([0, *(len(waits) for _, waits in items[:-1])])
        sums = np.add.reduceat(bare, starts)
        found |= {id(item): spent for (item, _), spent in zip(items, sums.tolist(), strict=True)}
    return found


def _bandwidth(match: Matched, size: int | None, clocks: Clock) -> tuple[float | None, float | None]:
    """S/t and its bus equivalent (NCCL tests' definitions); none when t is within the clocks' uncertainty."""
    residual = clocks.residual_ns
    if not size or not match.transfer or residual is None or match.transfer < 4 * (residual + _TICK_NS):
        return None, None
    rate = size / (match.transfer * 1e-9)
    factor = _BUS_FACTOR.get(match.kind)
    ranks = len(match.group) if match.group else len(match.members)
    return rate, rate * (factor(ranks) if factor else 1.0)
