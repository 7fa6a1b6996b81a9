"""Who is to blame where a strategy communicates other than its plan says.

The sidecar gives kind, axis, bytes, order and phase of every call of one rank; the plan gives the size and meaning of
what is expected. Calls too many or too few are sorted by size and told apart by what their sizes add up to: a planned
piece sent tensor by tensor, a planned piece sent more or less often, parameters. The rest is called unknown.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import structs

from shardscope.errors import ShardscopeError
from shardscope.measure.record import CommunicationCall, ExpectedCollective, RunRecord
from shardscope.selection.claims import AuditRow, Suspect
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import element_size, numel, outline, parameter_shapes
from shardscope.workload.spec import WorkloadSpec

__all__ = ["blamed"]

_WORD = re.compile(r"[a-z]{4,}")


def blamed(rows: Sequence[AuditRow], record: RunRecord, step: int | None) -> tuple[AuditRow, ...]:
    """`rows` with what is to blame, where a row disagrees and the sidecar of `step` is there."""
    return tuple(row if row.agrees else structs.replace(row, suspects=_suspects(row, record, step)) for row in rows)


def _suspects(row: AuditRow, record: RunRecord, step: int | None) -> tuple[Suspect, ...]:
    """Of the first rank whose calls differ; ranks of one group differ alike."""
    expected = record.plan.collectives if record.plan is not None else ()
    for rank, calls in sorted((int(rank), calls) for rank, calls in record.communication.items()):
        mine = [c for c in calls if c.step == step and (c.kind, c.axis) == (row.kind, row.axis)]
        lines = [e for e in expected if (e.kind, e.axis) == (row.kind, row.axis) and rank in e.group and e.count]
        others = [e for e in expected if e.axis == row.axis and e.kind != row.kind and rank in e.group and e.count]
        found = _explain(record.workload, rank, lines, mine, [c for c in calls if c.step == step])
        found = [_of_other_kind(each, others) for each in found]
        if found:
            return tuple(found)
    return ()


def _explain(
    spec: WorkloadSpec,
    rank: int,
    lines: Sequence[ExpectedCollective],
    calls: Sequence[CommunicationCall],
    every: Sequence[CommunicationCall],
) -> list[Suspect]:
    wanted: Counter[int] = Counter()
    named: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        wanted[line.bytes // line.count] += line.count
        named[line.bytes // line.count].append(line.what)
    seen = Counter(call.bytes for call in calls)
    more, fewer = seen - wanted, wanted - seen
    found: list[Suspect] = []
    parameters = _by_size(spec)
    # What is missing may have gone out tensor by tensor: all of it, or one piece.
    for sizes in (sorted(fewer), *([size] for size in sorted(fewer))):
        what = ", ".join(dict.fromkeys(what for size in sizes for what in named[size]))
        split = _split(rank, {size: fewer[size] for size in sizes}, what, more, parameters)
        if split is not None:
            found.append(structs.replace(split, phase=_phase(calls, set(more), every)))
            for taken in [each for each in more if each in parameters]:
                del more[taken]
            for size in sizes:
                del fewer[size]
            break
    for size in sorted(fewer):
        if len(more) == 1 and more.total() == fewer[size]:
            ((other, count),) = more.items()
            what = ", ".join(named[size])
            found.append(Suspect(cause="resized", rank=rank, count=count, each_bytes=other, what=what))
            more.clear()
        else:
            what = ", ".join(named[size])
            found.append(Suspect(cause="fewer", rank=rank, count=fewer[size], each_bytes=size, what=what))
    for size in sorted(more, reverse=True):
        found.append(_surplus(spec, rank, size, more[size], named, parameters, calls, every))
    return found


def _by_size(spec: WorkloadSpec) -> dict[int, list[str]]:
    """Bytes → parameters of that size; none where an own model cannot be built here."""
    found: dict[int, list[str]] = defaultdict(list)
    try:
        shapes = parameter_shapes(spec)
    except (ShardscopeError, ImportError):
        return {}
    for name, shape in shapes.items():
        found[numel(shape) * element_size(spec)].append(name)
    return dict(found)


def _split(
    rank: int, fewer: Mapping[int, int], what: str, more: Mapping[int, int], parameters: Mapping[int, list[str]]
) -> Suspect | None:
    """The calls too many are single tensors that add up to a whole number of times what is missing."""
    missing, lost = sum(fewer.values()), sum(size * count for size, count in fewer.items())
    tensors = {each: count for each, count in more.items() if each in parameters}
    total, count = sum(each * n for each, n in tensors.items()), sum(tensors.values())
    if not lost or count <= missing or total % lost:
        return None
    times = total // lost
    candidates = [(name, each) for each in tensors for name in parameters[each]]
    words = set(_WORD.findall(what))
    for listed in ([c for c in candidates if any(word in c[0] for word in words)], candidates):
        if sum(each for _, each in listed) == lost and len(listed) * times == count:
            names, exact = tuple(name for name, _ in listed), True
            break
    else:
        names, exact = tuple(name for name, _ in candidates), False
    return Suspect(
        cause="split", rank=rank, count=count, each_bytes=max(tensors), what=what, times=times, parameters=names,
        exact=exact,
    )  # fmt: skip


def _surplus(
    spec: WorkloadSpec,
    rank: int,
    size: int,
    count: int,
    named: Mapping[int, list[str]],
    parameters: Mapping[int, list[str]],
    calls: Sequence[CommunicationCall],
    every: Sequence[CommunicationCall],
) -> Suspect:
    """Calls of one size that the plan does not count."""
    per, each = _rhythm(spec, count)
    phase = _surplus_phase(calls, size, count) if size in named else _phase(calls, {size}, every)
    suspect = Suspect(
        cause="more", rank=rank, count=count, each_bytes=size, what=", ".join(named.get(size, [])) or None, per=per,
        per_count=each, phase=phase,
    )  # fmt: skip
    if suspect.what is not None:
        first = calls[0]
        shared = first.kind is Kind.ALL_REDUCE and first.axis is Axis.TENSOR and phase == "backward"
        readers, inputs = _readers(spec) if shared else ((), 0)
        if inputs and count == (len(readers) - inputs) * spec.micro_batches:
            return structs.replace(suspect, cause="shared_input", parameters=readers)
        return suspect
    if size in parameters:
        return structs.replace(suspect, cause="tensors", parameters=tuple(parameters[size]))
    return structs.replace(suspect, cause="unknown")


def _readers(spec: WorkloadSpec) -> tuple[tuple[str, ...], int]:
    """Matrices that read an input together with others, and how many such inputs there are (query, key and value: one).

    One reduction per input and micro-batch is planned for their gradients; one per matrix is what comes without it.
    """
    try:
        modules = outline(spec).tensor
    except (ShardscopeError, ImportError):
        return (), 0
    return tuple(m.name for m in modules if m.shared), sum(m.style == "input" for m in modules)


def _of_other_kind(suspect: Suspect, others: Sequence[ExpectedCollective]) -> Suspect:
    """An unknown size that the plan sends by another kind of collective on this axis."""
    same = [line for line in others if line.bytes // line.count == suspect.each_bytes]
    if suspect.cause not in ("unknown", "tensors") or not same:
        return suspect
    what = ", ".join(f"{line.what} ({line.kind})" for line in same)
    return structs.replace(suspect, cause="other_kind", what=what)


def _rhythm(spec: WorkloadSpec, count: int) -> tuple[str | None, int | None]:
    """Of what the count is a multiple."""
    for per, unit in (
        ("layer and micro-batch", spec.layers * spec.micro_batches),
        ("micro-batch", spec.micro_batches),
        ("layer", spec.layers),
    ):
        if unit > 1 and count % unit == 0:
            return per, count // unit
    return None, None


def _surplus_phase(calls: Sequence[CommunicationCall], size: int, count: int) -> str | None:
    """Where calls too many of a planned size are: conjugate collectives come as often in forward as in backward."""
    same = [call.backward for call in calls if call.bytes == size]
    if None in same:
        return None
    backward = sum(map(bool, same))
    tilt = backward - (len(same) - backward)
    return {count: "backward", -count: "forward"}.get(tilt)


def _phase(calls: Sequence[CommunicationCall], sizes: set[int], every: Sequence[CommunicationCall]) -> str | None:
    """The phase that all calls of these sizes share."""
    chosen = [call for call in calls if call.bytes in sizes]
    flags = {call.backward for call in chosen}
    if len(flags) != 1 or None in flags:
        return None
    if True in flags:
        return "backward"
    last = max((index for index, call in enumerate(every) if call.backward), default=len(every))
    first = next(index for index, call in enumerate(every) if call.bytes in sizes and call in chosen)
    return "after backward" if first > last else "forward"
