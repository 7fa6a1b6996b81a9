"""Which rank keeps the others waiting: the exposed waiting it causes, each moment counted once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from shardscope.attribution.intervals import IntArray, subtract, total, union
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.match import Matched
from shardscope.attribution.result import Attribution, Straggler

__all__ = ["over_steps", "stragglers"]


def stragglers(matches: Sequence[Matched], parts: Mapping[tuple[int, int | None], RowParts]) -> list[Straggler]:
    """One entry per step and rank of a matched collective or message.

    A rank causes the waiting of the others in what it is last in. Several such waits of one rank at the same moment are
    one; what that rank computes or transfers meanwhile is no waiting. So the waiting caused never exceeds the waiting
    suffered, bubble included.
    """
    shown = [match for match in matches if not match.broken and len(match.members) > 1]
    moving: dict[tuple[int, int | None], list[IntArray]] = defaultdict(list)
    waiting: dict[tuple[int | None, int, int], list[IntArray]] = defaultdict(list)  # step, the last one, who waits
    last: dict[tuple[int | None, int], int] = defaultdict(int)
    taking_part: dict[tuple[int | None, int], int] = defaultdict(int)
    for match in shown:
        for rank, item in match.members.items():
            taking_part[match.step, rank] += 1
            if item.transfers is not None:
                moving[rank, match.step].append(item.transfers)
            if match.last_rank not in (None, rank) and item.waits is not None and (rank, match.step) in parts:
                waiting[match.step, match.last_rank or 0, rank].append(item.waits)
        if match.last_rank is not None:
            last[match.step, match.last_rank] += 1
    busy = {key: union(parts[key].compute, *moving[key]) for key in parts if key in moving}
    caused: dict[tuple[int | None, int], int] = defaultdict(int)
    for (step, late, rank), waits in waiting.items():
        caused[step, late] += total(subtract(union(*waits), busy[rank, step]))
    return [
        Straggler(step=step, rank=rank, last=last[step, rank], collectives=count, caused_ns=caused[step, rank])
        for (step, rank), count in taking_part.items()
    ]


def over_steps(result: Attribution, step: int | None = None) -> list[Straggler]:
    """Sums over all steps (or those of one `step`) by rank, the rank that costs the others most first."""
    found: dict[int, Straggler] = {}
    for each in result.stragglers:
        if step is not None and each.step != step:
            continue
        so_far = found.get(each.rank, Straggler(step=step, rank=each.rank, last=0, collectives=0, caused_ns=0))
        found[each.rank] = Straggler(
            step=step,
            rank=each.rank,
            last=so_far.last + each.last,
            collectives=so_far.collectives + each.collectives,
            caused_ns=so_far.caused_ns + each.caused_ns,
        )
    return sorted(found.values(), key=lambda item: (-item.caused_ns, item.rank))
