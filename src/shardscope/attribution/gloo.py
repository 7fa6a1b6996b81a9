"""Which gloo span belongs to which c10d call.

Every process group has its own pool of two worker threads that take calls from one queue, so calls and spans match in
order within a pool. A span names the algorithm, not the call: gloo runs reduce-scatter as all-reduce and says so.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec

from shardscope.attribution.communication import Communication
from shardscope.attribution.intervals import single
from shardscope.attribution.kinds import kind_of_operation
from shardscope.trace.events import Args
from shardscope.vocabulary import Kind

__all__ = ["Span", "assign", "sizes"]

_POOL_THREADS = 2
_ASSIGNMENTS = 4096  # thread-to-group assignments worth trying


@dataclass(slots=True, eq=False)
class Span:
    """One `gloo:*` span on a worker thread."""

    thread: int
    start: int
    end: int
    name: str
    sizes: frozenset[int]  # elements of the tensors it names; empty when not recorded
    element_type: str = ""


def sizes(args: Args | None) -> frozenset[int]:
    """Element counts of every tensor in `Input Dims`, and of each tensor list as a whole."""
    if args is None or not len(args.dims):
        return frozenset()
    try:
        value = msgspec.json.decode(args.dims)
    except msgspec.MsgspecError:
        return frozenset()
    found: set[int] = set()
    for item in value if isinstance(value, list) else []:
        counts = list(_elements(item))
        found.update(counts)
        if len(counts) > 1:
            found.add(sum(counts))
    return frozenset(found)


def _elements(item: Any) -> Iterable[int]:
    """Elements of one tensor (list of numbers) or of each tensor of a list."""
    if not isinstance(item, list) or not item:
        return
    if all(isinstance(number, int) and not isinstance(number, bool) for number in item):
        count = 1
        for number in item:
            count *= number
        yield count
    else:
        for inner in item:
            yield from _elements(inner)


def assign(calls: Sequence[Communication], spans: Sequence[Span]) -> list[Span]:
    """Give every span to the call it carried out, extending `busy`; returns the spans without a call.

    `calls` are in the order of issue, without those that run on the calling thread (sends, receives, monitored
    barriers). Calls of several known groups are matched per pool; where the order leaves several possibilities, or the
    groups are unknown, the earliest call that fits takes the span.
    """
    spans = sorted(spans, key=lambda span: (span.start, span.end))
    by_group: dict[tuple[int, ...] | None, list[Communication]] = defaultdict(list)
    for call in calls:
        by_group[call.group].append(call)
    if len(by_group) < 2 or None in by_group:
        pairs, rest = _in_order(calls, spans)
    else:
        pairs, rest = _by_pool(by_group, spans)
    for call, span in pairs:
        call.extend(single(span.start, span.end))
        call.spans += 1
        call.element_type = call.element_type or span.element_type
    return rest


Pairs = list[tuple[Communication, Span]]


def _by_pool(
    by_group: dict[tuple[int, ...] | None, list[Communication]], spans: list[Span]
) -> tuple[Pairs, list[Span]]:
    threads: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        threads[span.thread].append(span)
    names = list(threads)
    choices = [
        [
            group
            for group, calls in by_group.items()
            if all(any(_fits(call, span) for call in calls) for span in threads[name])
        ]
        or list(by_group)
        for name in names
    ]
    count = 1
    for options in choices:
        count *= len(options)
    best: tuple[int, Pairs, list[Span]] | None = None
    for chosen in product(*choices) if count <= _ASSIGNMENTS else ():
        if any(chosen.count(group) > _POOL_THREADS for group in set(chosen)):
            continue
        pairs: Pairs = []
        rest: list[Span] = []
        for group, calls in by_group.items():
            pool = {name for name, owner in zip(names, chosen, strict=True) if owner == group}
            matched, left = _in_order(calls, [span for span in spans if span.thread in pool])
            pairs += matched
            rest += left
        if best is None or len(pairs) > best[0]:
            best = len(pairs), pairs, rest
    if best is not None:
        return best[1], best[2]
    return _in_order(
        sorted((call for calls in by_group.values() for call in calls), key=lambda call: call.order), spans
    )


def _in_order(calls: Sequence[Communication], spans: Sequence[Span]) -> tuple[Pairs, list[Span]]:
    pairs: Pairs = []
    rest: list[Span] = []
    waiting: list[Communication] = []
    taken: dict[int, int] = defaultdict(int)
    upcoming = iter(calls)
    following = next(upcoming, None)
    for span in spans:
        while following is not None and following.order <= span.start:
            waiting.append(following)
            following = next(upcoming, None)
        call = next((call for call in waiting if _fits(call, span)), None)
        if call is None:
            rest.append(span)
            continue
        pairs.append((call, span))
        taken[id(call)] += 1
        if taken[id(call)] >= _spans_of(call):
            waiting.remove(call)
    return pairs, rest


def _spans_of(call: Communication) -> int:
    """One call gives one span, except a reduce-scatter of lists: one per rank."""
    if call.name == "c10d::reduce_scatter_":
        return call.group_size or 1
    return 1


def _fits(call: Communication, span: Span) -> bool:
    if span.start < call.order:
        return False
    named = kind_of_operation(span.name)
    if named is not call.kind and not (call.kind is Kind.REDUCE_SCATTER and named is Kind.ALL_REDUCE):
        return False
    if call.kind is Kind.OTHER and not _same_word(call.name, span.name):
        return False
    known: frozenset[int] = call.dims or frozenset()
    return not known or not span.sizes or bool(known & span.sizes)


def _same_word(call: str, span: str) -> bool:
    words = ("barrier", "reduce", "gather", "scatter")
    return [word in call for word in words] == [word in span for word in words]
