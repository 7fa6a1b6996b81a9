"""Events of a rank without a device: operators compute, gloo spans and c10d calls communicate."""

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.calls import host_communications
from shardscope.attribution.intervals import IntArray, intersect, subtract, union
from shardscope.attribution.marks import optimizer_spans
from shardscope.attribution.view import RankView
from shardscope.measure.record import CommunicationCall
from shardscope.trace.events import Class
from shardscope.trace.table import Timeline

__all__ = ["fill_host_view"]

_NAMESPACE = re.compile(r"^([A-Za-z_]\w*)::")
_NOT_OPERATORS = {"autograd", "torch", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"}
_CALLS = ("c10d::", "_c10d_functional", "c10d_functional")
_COMPILED = "## Call CompiledFxGraph"
_LOADER = "enumerate(DataLoader)"


def fill_host_view(view: RankView, sidecar: Sequence[CommunicationCall] | None) -> None:
    """Fill compute, data loading and communication of a CPU rank whose steps are already set."""
    table = view.timeline
    flags = {
        "operator": _flag(table, _is_operator),
        "call": _flag(table, lambda name: name.startswith(_CALLS)),
        "gloo": _flag(table, lambda name: name.startswith("gloo:")),
        "loader": _flag(table, lambda name: name.startswith(_LOADER)),
        "compiled": _flag(table, lambda name: name.startswith(_COMPILED)),
    }
    host = (table.kind == Class.HOST_OP) | (table.kind == Class.ANNOTATION)
    workers = _workers(table, flags["gloo"] & host, flags["call"] & host)
    own = host & ~np.isin(table.thread, workers)
    operators = own & ((flags["operator"] & (table.kind == Class.HOST_OP)) | flags["compiled"])
    calls = own & flags["call"] & (table.kind == Class.HOST_OP)
    loaders = own & flags["loader"]
    compute: list[IntArray] = []
    loading: list[IntArray] = []
    rows: list[IntArray] = []
    activity: dict[int, IntArray] = {}
    for thread in np.unique(table.thread[operators | calls]):
        here = table.thread == thread
        working = _set(table, operators & here)
        calling = _set(table, calls & here)
        fetching = _set(table, loaders & here)
        loading.append(intersect(working, fetching))
        # Collectives and waits nested in an operator are not its work.
        excluded = union(calling, fetching)
        compute.append(subtract(working, excluded))
        rows.append(_rows_less(np.column_stack((table.start[operators & here], table.end[operators & here])), excluded))
        activity[int(thread)] = union(working, calling)
    view.compute = union(*compute)
    view.compute_rows = np.concatenate(rows) if rows else view.compute
    view.loading = union(*loading)
    view.micro_compute = intersect(view.compute, view.mark_spans)
    view.optimizer_compute = intersect(view.compute, optimizer_spans(view))
    spans = np.flatnonzero(flags["gloo"] & host)
    host_communications(view, np.flatnonzero(calls), spans, set(workers), activity, sidecar)


def _flag(table: Timeline, test: Callable[[str], bool]) -> NDArray[np.bool_]:
    by_name = np.array([bool(test(name)) for name in table.names], dtype=bool)
    return by_name[table.name] if len(by_name) else np.zeros(len(table), dtype=bool)


def _is_operator(name: str) -> bool:
    found = _NAMESPACE.match(name)
    return bool(found) and found[1] not in _NOT_OPERATORS  # type: ignore[index]


def _set(table: Timeline, mask: NDArray[np.bool_]) -> IntArray:
    return union(np.column_stack((table.start[mask], table.end[mask])))


def _workers(table: Timeline, spans: NDArray[np.bool_], calls: NDArray[np.bool_]) -> list[int]:
    """Threads with gloo spans and no step mark. A thread that issues calls is the trainer's, marks or not."""
    steps = _flag(table, lambda name: name.startswith("ProfilerStep"))
    mine = set(np.unique(table.thread[steps & (table.kind == Class.ANNOTATION)])) | set(np.unique(table.thread[calls]))
    return [int(thread) for thread in np.unique(table.thread[spans]) if thread not in mine]


def _rows_less(rows: IntArray, excluded: IntArray) -> IntArray:
    """Rows as they are, except those that touch `excluded`: of these what is left over."""
    if not len(excluded):
        return rows
    place = np.searchsorted(excluded[:, 1], rows[:, 0], side="right")
    touched = (place < len(excluded)) & (excluded[np.minimum(place, len(excluded) - 1), 0] < rows[:, 1])
    return np.concatenate((rows[~touched], subtract(union(rows[touched]), excluded)))
