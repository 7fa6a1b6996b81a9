"""The same collective on several ranks: matching, waiting apart from transferring."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import clip, single, subtract, union
from shardscope.attribution.view import RankView
from shardscope.vocabulary import Kind

__all__ = ["Matched", "match_all", "split_waits"]


@dataclass(eq=False)
class Matched:
    """One collective, or one send/receive pair, on the ranks whose traces are present."""

    members: dict[int, Communication]
    matched_by: str
    step: int | None  # step number
    group: tuple[int, ...] | None
    kind: Kind
    complete: bool  # every member of the group is here
    transfer: int | None = None
    last_rank: int | None = None
    exact: bool = False
    broken: bool = False  # contradicts itself beyond the clocks' residual: not used

    @property
    def pair(self) -> bool:
        """A send and its receive."""
        return self.kind is Kind.SEND_RECEIVE and all(item.direction for item in self.members.values())


def match_all(views: Mapping[int, RankView]) -> list[Matched]:
    """Match every rank's communication. Events that match nothing keep unknown waits."""
    keyed: dict[tuple[object, ...], dict[int, list[Communication]]] = defaultdict(lambda: defaultdict(list))
    for rank, view in views.items():
        for item in view.communications:
            key = _key(item, rank, view)
            if key is not None:
                keyed[key][rank].append(item)
    numbers = {rank: {step.number for step in view.steps} for rank, view in views.items()}
    found: list[Matched] = []
    for key, by_rank in keyed.items():
        found += _pairs(by_rank, views) if key[0] == "pair" else _collectives(key, by_rank, views, numbers)
    found.sort(key=lambda match: min(item.arrival for item in match.members.values()))
    return found


def _key(item: Communication, rank: int, view: RankView) -> tuple[object, ...] | None:
    number = view.steps[item.step].number if item.step is not None and item.step < len(view.steps) else None
    if item.step is None:
        return None
    if item.direction is not None:
        if item.peer is None:
            return None
        ends = (rank, item.peer) if item.direction == "send" else (item.peer, rank)
        return ("pair", *ends, item.tag, item.group, number)
    if item.group_size == 1:
        return ("alone", rank, item.arrival)
    if item.comms_id is not None:
        return ("comms id", item.comms_id, item.group)
    if item.group is not None and item.sequence is not None:
        return ("sequence", item.group, item.group_name, item.sequence, item.kind is Kind.SEND_RECEIVE)
    return ("order", item.group, number)


def _collectives(
    key: tuple[object, ...],
    by_rank: Mapping[int, Sequence[Communication]],
    views: Mapping[int, RankView],
    numbers: Mapping[int, set[int | None]],
) -> Iterable[Matched]:
    how, group = str(key[0]), key[1] if key[0] in ("order", "sequence") else key[-1]
    lists = {rank: sorted(items, key=lambda item: item.order) for rank, items in by_rank.items()}
    if how == "alone":
        (rank, items), *_ = lists.items()
        return [_matched({rank: items[0]}, how, views, (rank,))]
    members = tuple(group) if isinstance(group, tuple) else _everyone(views)
    if members is None or not set(lists) <= set(members):  # a group that does not hold the rank contradicts itself
        return []
    rank, first = next((rank, items[0]) for rank, items in lists.items())
    number = views[rank].steps[first.step].number if first.step is not None else None
    # A rank whose trace has not got this step is missing here like one without a trace.
    present = [rank for rank in members if rank in lists or (rank in views and number in numbers[rank])]
    # k-th with k-th only if every rank saw the same sequence of kinds.
    if len({tuple(item.kind for item in lists.get(rank, ())) for rank in present}) != 1:
        return []
    count = len(lists[present[0]])
    return [_matched({rank: lists[rank][k] for rank in present}, how, views, members) for k in range(count)]


def _everyone(views: Mapping[int, RankView]) -> tuple[int, ...] | None:
    """Without any word about groups the world is the only candidate, if it is known."""
    sizes = {view.world_size for view in views.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or size < len(views) or any(view.groups.groups for view in views.values()):
        return None
    return tuple(range(size))


def _matched(
    members: dict[int, Communication], how: str, views: Mapping[int, RankView], group: tuple[int, ...] | None
) -> Matched:
    rank, first = next(iter(members.items()))
    step = views[rank].steps[first.step].number if first.step is not None else None
    complete = group is not None and len(members) == len(group)
    return Matched(members, how, step, group, first.kind, complete)


def _pairs(by_rank: Mapping[int, Sequence[Communication]], views: Mapping[int, RankView]) -> Iterable[Matched]:
    sides: dict[str, tuple[int, list[Communication]]] = {}
    for rank, items in by_rank.items():
        for direction in ("send", "receive"):
            mine = sorted((item for item in items if item.direction == direction), key=lambda item: item.order)
            if mine:
                sides[direction] = rank, mine
    if len(sides) != 2:
        return []
    (source, sends), (destination, receives) = sides["send"], sides["receive"]
    if len(sends) != len(receives) or source == destination:
        return []
    found = []
    for send, receive in zip(sends, receives, strict=True):
        match = _matched({source: send, destination: receive}, "order", views, (source, destination))
        found.append(match)
    return found


def split_waits(matches: Sequence[Matched], offsets: Mapping[int, int], residual: int) -> Counter[str]:
    """Split `busy` of every matched event into waits and transfers.

    `offsets[rank]` is how far the rank's clock is ahead; `residual` the disagreement (ns) below which order means
    nothing. Returns how many matches were given up, by reason.
    """
    given_up: Counter[str] = Counter()
    for match in matches:
        if match.pair:
            _split_pair(match, offsets, residual)
            continue
        alone = len(match.members) == 1 and match.matched_by != "alone"
        if not alone and not _split_collective(match, offsets, residual):
            match.broken = True
            given_up["ends before the last rank arrives"] += 1
    return given_up


def _split_collective(match: Matched, offsets: Mapping[int, int], residual: int) -> bool:
    arrivals = {rank: item.arrival - offsets.get(rank, 0) for rank, item in match.members.items()}
    ends = {rank: item.end - offsets.get(rank, 0) for rank, item in match.members.items()}
    last = max(arrivals.values())
    first = next(iter(match.members.values()))
    waits_for: dict[int, int | None] = {}
    if first.synchronising:
        if any(end < last - residual for end in ends.values()):
            return False
        waits_for = {rank: min(last, ends[rank]) for rank in arrivals}
    elif first.kind is Kind.BROADCAST or "scatter" in first.name:
        ready = arrivals.get(first.root) if first.root is not None else None
        waits_for = {rank: arrivals[rank] if rank == first.root else ready for rank in arrivals}
    else:  # reduce, gather: only the root waits, for the last
        known = first.root is not None
        waits_for = {rank: (last if rank == first.root else arrivals[rank]) for rank in arrivals} if known else {}
    transfers = []  # the last to arrive does not wait, so the shortest duration is the transfer, whatever the clocks
    for rank, item in match.members.items():
        ready = waits_for.get(rank)
        if ready is None:
            continue
        item.split_at(ready + offsets.get(rank, 0))
        item.bounds = not match.complete or item.kind is Kind.ALL_TO_ALL
        begin = arrivals[rank] if first.synchronising else max(ready, arrivals[rank])
        transfers.append(max(0, ends[rank] - begin))
    match.last_rank = _clear_last(arrivals, residual)
    match.transfer = min(transfers) if transfers else None
    match.exact = match.complete and first.synchronising and first.kind is not Kind.ALL_TO_ALL
    return True


def _clear_last(arrivals: Mapping[int, int], residual: int) -> int | None:
    """The rank that arrived last, if it did so by more than the clocks disagree."""
    order = sorted(arrivals, key=lambda rank: arrivals[rank])
    if len(order) < 2 or arrivals[order[-1]] - arrivals[order[-2]] <= residual:
        return None
    return order[-1]


def _split_pair(match: Matched, offsets: Mapping[int, int], residual: int) -> None:
    posted = {rank: _ready(item) - offsets.get(rank, 0) for rank, item in match.members.items()}
    ends = {rank: item.end - offsets.get(rank, 0) for rank, item in match.members.items()}
    start = max(posted.values())
    match.last_rank = _clear_last(posted, residual)
    if any(item.posted is not None for item in match.members.values()):  # gloo: both spans, an upper bound
        end = min(ends.values())
        for rank, item in match.members.items():
            offset = offsets.get(rank, 0)
            begin = item.posted if item.posted is not None else item.arrival
            moving = clip(single(start + offset, end + offset), begin, item.end)
            item.busy = union(item.inside, item.gap, moving)
            item.waits = subtract(subtract(item.gap, moving), item.inside)
            item.transfers = subtract(item.busy, item.waits)
            item.bounds = True
        match.transfer = max(0, end - start)
        return
    for rank, item in match.members.items():
        item.split_at(min(max(start + offsets.get(rank, 0), item.arrival), item.end))
    match.transfer = min(max(0, ends[rank] - max(start, posted[rank])) for rank in posted)
    match.exact = True


def _ready(item: Communication) -> int:
    """When one side of a pair began to take part.

    On gloo a receive posted long before its rank waits for it (interleaved schedules do so) does not tell when the
    message came: it may have moved under compute. What can cost time is what is left once the rank waits.
    """
    if item.posted is None:
        return item.arrival
    if item.direction == "receive" and (not len(item.gap) or int(item.gap[0, 0]) > item.call_end):
        return int(item.gap[0, 0]) if len(item.gap) else item.end
    return item.posted
