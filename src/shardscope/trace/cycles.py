"""Several profiling cycles of one rank, each in its own file, as one timeline."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardscope.trace.events import Args
from shardscope.trace.table import COLUMNS, Strings, Timeline

__all__ = ["are_cycles", "join"]

_ID_STRIDE = 1 << 40  # correlation ids of different files never meet


def are_cycles(timelines: Sequence[Timeline]) -> bool:
    """Do files that claim one rank, in worlds of one size, show different steps at different times? Then they are
    cycles of that rank."""
    worlds = [info.get("world_size") for t in timelines if isinstance(info := t.metadata.get("distributedInfo"), dict)]
    if any(world != worlds[0] for world in worlds):
        return False
    marks: set[str] = set()
    spans = []
    for timeline in timelines:
        steps = {name for name in timeline.names if name.startswith("ProfilerStep")}
        if not steps or marks & steps:
            return False
        marks |= steps
        spans.append((int(timeline.start.min()) + timeline.base_ns, int(timeline.end.max()) + timeline.base_ns))
    spans.sort()
    return all(before[1] <= after[0] for before, after in pairwise(spans))


def join(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline of all cycles, in order of time."""
    if len(timelines) == 1:
        return timelines[0]
    timelines = sorted(timelines, key=lambda timeline: int(timeline.start.min()) + timeline.base_ns)
    first = timelines[0]
    names, categories, threads = Strings(), Strings(), Strings()
    columns: list[tuple[NDArray[Any], ...]] = []
    args: dict[int, Args] = {}
    rows = 0
    for cycle, timeline in enumerate(timelines):
        shift = timeline.base_ns - first.base_ns
        offset = cycle * _ID_STRIDE
        columns.append((
            timeline.start + shift, timeline.end + shift, timeline.kind,
            _recode(timeline.name, timeline.names, names), _recode(timeline.category, timeline.categories, categories),
            _recode(timeline.thread, timeline.threads, threads), timeline.stream, timeline.device,
            np.where(timeline.correlation > 0, timeline.correlation + offset, timeline.correlation),
            np.where(timeline.external > 0, timeline.external + offset, timeline.external),
        ))  # fmt: skip
        args |= {row + rows: value for row, value in timeline.args.items()}
        rows += len(timeline)
    joined: dict[str, Any] = {
        name: np.concatenate(parts) for name, parts in zip(COLUMNS, zip(*columns, strict=True), strict=True)
    }
    return Timeline(
        first.path, first.metadata, first.base_ns, **joined,
        names=names.texts, categories=categories.texts, threads=threads.texts, args=args,
        warnings=sum((timeline.warnings for timeline in timelines), Counter()),
        dropped=sum((timeline.dropped for timeline in timelines), Counter()),
        cut=next((timeline.cut for timeline in timelines if timeline.cut), None),
        parts=tuple(timeline.path for timeline in timelines),
    )  # fmt: skip


def _recode(column: NDArray[np.int32], texts: Sequence[object], into: Strings) -> NDArray[np.int32]:
    codes = np.array([into[text] for text in texts], dtype=np.int32)
    return codes[column] if len(codes) else column
