"""Clock alignment across ranks, from the ends of collectives that no rank can leave early."""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from shardscope.attribution.match import Matched
from shardscope.attribution.result import Clock
from shardscope.vocabulary import Kind

__all__ = ["align"]

_TELLING = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
_SPREAD_PERCENTILE = 75


def align(matches: Sequence[Matched], ranks: Sequence[int]) -> tuple[dict[int, int], Clock]:
    """Offsets (ns, how far each rank's clock is ahead of the first rank's) and what to report about them.

    Per pair of ranks the offset is the median difference of ends over their common collectives; the spread is the
    three-quarter quantile of the distance from that median. An offset is applied only above its spread. The residual is
    the largest spread: order within it means nothing. Without common collectives nothing is known (residual None).
    """
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if match.pair or not _tells(match):
            continue
        members = sorted(match.members)
        for i, first in enumerate(members):
            for second in members[i + 1 :]:
                differences[first, second].append(match.members[second].end - match.members[first].end)
    if not differences:
        return {}, Clock(applied=False, offset_ns={}, residual_ns=None)
    edges: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    residual = 0
    for (first, second), values in differences.items():
        middle = int(np.median(values))
        spread = int(np.percentile(np.abs(np.array(values) - middle), _SPREAD_PERCENTILE))
        residual = max(residual, spread)
        offset = middle if abs(middle) > spread else 0
        edges[first].append((second, offset, spread))
        edges[second].append((first, -offset, spread))
    offsets: dict[int, int] = {}
    for start in sorted(ranks):
        if start in offsets:
            continue
        offsets[start] = 0
        queue = deque([start])
        while queue:
            rank = queue.popleft()
            for other, offset, _ in sorted(edges[rank], key=lambda edge: edge[2]):
                if other not in offsets:
                    offsets[other] = offsets[rank] + offset
                    queue.append(other)
    moved = {rank: offset for rank, offset in offsets.items() if offset}
    return moved, Clock(
        applied=bool(moved), offset_ns={str(r): o for r, o in sorted(moved.items())}, residual_ns=residual
    )


def _tells(match: Matched) -> bool:
    first = next(iter(match.members.values()))
    return match.kind in _TELLING or (match.kind is Kind.OTHER and "barrier" in first.name)
