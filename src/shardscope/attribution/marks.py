"""Annotations that say what a step is doing: micro-batches of a pipeline stage, the optimizer, the data loader."""

import re
from collections.abc import Callable

import numpy as np

from shardscope.attribution.intervals import EMPTY, IntArray, from_pairs, union
from shardscope.attribution.view import Mark, RankView
from shardscope.trace.events import Class
from shardscope.trace.table import Timeline

__all__ = ["annotation_spans", "find_marks", "loader_spans", "optimizer_spans"]

_MICRO_BATCH = re.compile(r"^shardscope::(forward|backward)#(\d{1,9})$")
_OPTIMIZER = ("Optimizer.step#", "shardscope::optimizer")
_LOADER = "enumerate(DataLoader)"


def find_marks(view: RankView) -> None:
    """Set `view.marks` and `view.mark_spans`."""
    table = view.timeline
    wanted = {code: match for code, name in enumerate(table.names) if (match := _MICRO_BATCH.match(name))}
    if not wanted:
        return
    for row in table.rows(Class.ANNOTATION):
        match = wanted.get(int(table.name[row]))
        if match:
            view.marks.append(Mark(match[1] == "backward", int(match[2]), int(table.start[row]), int(table.end[row])))
    view.mark_spans = from_pairs((mark.start, mark.end) for mark in view.marks)


def optimizer_spans(view: RankView) -> IntArray:
    """Per step, from the first optimizer annotation to the end of the host's step."""
    spans = annotation_spans(view.timeline, lambda name: name.startswith(_OPTIMIZER))
    pairs = []
    for step in view.steps:
        inside = spans[(spans[:, 0] >= step.host_start) & (spans[:, 0] < step.host_end)]
        if len(inside):
            pairs.append((int(inside[0, 0]), step.host_end))
    return from_pairs(pairs)


def loader_spans(table: Timeline) -> IntArray:
    """When some thread fetches data."""
    return annotation_spans(table, lambda name: name.startswith(_LOADER))


def annotation_spans(table: Timeline, test: Callable[[str], bool]) -> IntArray:
    """Union of the host annotations whose name passes the test."""
    codes = [code for code, name in enumerate(table.names) if test(name)]
    if not codes:
        return EMPTY
    # Traces of 2021 have annotations among the operators.
    mask = ((table.kind == Class.ANNOTATION) | (table.kind == Class.HOST_OP)) & np.isin(table.name, codes)
    return union(np.column_stack((table.start[mask], table.end[mask])))
