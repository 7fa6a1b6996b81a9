"""HolisticTraceAnalysis as second opinion: its temporal breakdown and overlap beside ours, over the same steps."""

import contextlib
import io
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardscope.attribution.analysis import Analysis, analysis_of
from shardscope.attribution.export import write_rows
from shardscope.attribution.intervals import IntArray, intersect, subtract, total, union
from shardscope.attribution.result import Attribution, HtaRow, SecondOpinion
from shardscope.attribution.steps import LAUNCH_UNKNOWN
from shardscope.attribution.view import RankView
from shardscope.errors import ResultError
from shardscope.trace.events import Class

__all__ = ["second_opinion"]

_TOLERANCE_NS = 1000.0
_NO_ROUNDING = "HTA_DISABLE_NS_ROUNDING"  # else HTA rounds every time to whole microseconds
_SHORT_GAP_US = 30  # HTA's limit between kernel wait and other; its text says ns, its comparison is of µs
_GAPS = ("host_wait", "kernel_wait", "other")
_OVERLAP_STEP = 0.005e-2  # HTA gives the overlap in percent with two decimals


@dataclass(frozen=True)
class _Sets:
    """What one rank does over the compared time."""

    compute: IntArray
    communication: IntArray
    copies: IntArray
    gaps: dict[str, float] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """HTA's quantities from our sets (ns): its kernel time runs from the first to the last device event."""
        everything = union(self.compute, self.communication, self.copies)
        span = int(everything[-1, 1] - everything[0, 0]) if len(everything) else 0
        return {
            "kernel_time": float(span),
            "compute_time": float(total(self.compute)),
            "non_compute_time": float(total(subtract(everything, self.compute))),
            "idle_time": float(span - total(everything)),
            "overlap_time": float(total(intersect(self.communication, self.compute))),
            **self.gaps,
        }


def second_opinion(folder: Path, result: Attribution) -> SecondOpinion:
    """Compare with HTA, the summary step on CPU, all recorded device work on accelerators.

    On CPU it gets the rows we classified, so it checks the arithmetic and not the typing. A difference over 1 µs is
    flagged with its cause. Not available: `reason` says why. Never raises for HTA's own failures.
    """
    os.environ[_NO_ROUNDING] = "1"
    try:
        with _quiet():
            from hta.trace_analysis import TraceAnalysis  # type: ignore[import-untyped,unused-ignore]
            from hta.version import __version__ as version
    except ImportError as error:
        reason = f"HolisticTraceAnalysis is not installed ({error}); pip install 'shardscope[hta]'"
        return SecondOpinion(available=False, reason=reason, version=None, rows=[])
    analysis = _analysis(folder, result)
    rows: list[HtaRow] = []
    with tempfile.TemporaryDirectory() as temporary, _quiet():
        for key, view in sorted(analysis.views.items()):
            prepared = _prepare(analysis, key, Path(temporary) / f"rank{max(key, 0)}.json")
            if prepared is None:
                continue
            path, sets = prepared
            try:
                numbers = _ask(TraceAnalysis, max(key, 0), path, sets)
            except Exception as error:  # a foreign tool may fail in any way on a foreign trace
                reason = f"HTA {version} failed on rank {key}: {type(error).__name__}: {error}"
                return SecondOpinion(available=False, reason=" ".join(reason.split())[:300], version=version, rows=[])
            rows += _compare(view, key, sets, numbers)
    if not rows and any(_unreadable(view) for view in analysis.views.values()):
        reason = "HTA reads one file per rank and takes several devices in it for one, so it was not asked"
        return SecondOpinion(available=False, reason=reason, version=version, rows=[])
    return SecondOpinion(available=True, reason=None, version=version, rows=rows)


def _analysis(folder: Path, result: Attribution) -> Analysis:
    try:
        return analysis_of(result)
    except ResultError:
        from shardscope.attribution.api import analyse_run

        return analyse_run(folder)


def _prepare(analysis: Analysis, key: int, path: Path) -> tuple[Path, _Sets] | None:
    """The file HTA reads and our sets over the same time; None for a rank that did nothing."""
    view = analysis.views[key]
    if view.launches is not None:
        if _unreadable(view):
            return None
        everything = union(*(item.busy for item in view.communications))
        return view.timeline.path, _Sets(view.compute, everything, view.copies, _stream_gaps(view))
    part = analysis.parts.get((key, analysis.result.summary_step))
    if part is None or not (len(part.compute) or len(part.busy)):
        return None
    write_rows(view, part, path)
    return path, _Sets(part.compute, part.busy, part.copies)


def _unreadable(view: RankView) -> bool:
    return view.device_index is not None or bool(view.timeline.parts)


def _stream_gaps(view: RankView) -> dict[str, float]:
    """Idle time of each stream between its first and last work, summed over streams, split as HTA does (ns).

    host wait: the next work was launched after the stream ran empty; kernel wait: before, and the gap is short; other:
    before, and the gap is long, or no launch is recorded. Other streams may be busy meanwhile, so these are not the
    ledger's not_launched and queued.
    """
    work = view.launches
    assert work is not None
    found = dict.fromkeys(_GAPS, 0)
    for stream in np.unique(work.stream).tolist():
        mine = np.flatnonzero(work.stream == stream)
        launch, free = work.launch[mine[1:]], np.maximum.accumulate(work.end[mine[:-1]])
        gap = np.maximum(work.start[mine[1:]] - free, 0)
        late = launch > free
        short = ~late & (launch != LAUNCH_UNKNOWN) & (gap < _SHORT_GAP_US * 1000)
        for name, mask in zip(_GAPS, (late, short, ~late & ~short), strict=True):
            found[name] += int(gap[mask].sum())
    return {f"stream_{name}_time": float(spent) for name, spent in found.items()}


def _ask(trace_analysis: Any, rank: int, path: Path, sets: _Sets) -> dict[str, float]:
    # One rank at a time: with several, HTA forks a pool of processes.
    hta = trace_analysis(trace_files={rank: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True)
    row = hta.get_temporal_breakdown(visualize=False).iloc[0]
    numbers = {
        name: float(row[f"{name}(us)"]) * 1000
        for name in ("kernel_time", "compute_time", "non_compute_time", "idle_time")
    }
    busy = total(sets.communication)
    if busy and total(sets.compute):
        percent = float(hta.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"])
        if not math.isnan(percent):  # it is where HTA sees no communication
            numbers["overlap_time"] = percent / 100 * busy
    if sets.gaps:
        idle = hta.get_idle_time_breakdown(ranks=[rank], visualize=False, consecutive_kernel_delay=_SHORT_GAP_US)[0]
        spent = idle.groupby("idle_category")["idle_time"].sum()
        numbers |= {f"stream_{name}_time": float(spent.get(name, 0.0)) * 1000 for name in _GAPS}
    return numbers


def _compare(view: RankView, key: int, sets: _Sets, theirs: dict[str, float]) -> list[HtaRow]:
    ours = sets.numbers()
    rows = []
    for quantity, value in theirs.items():
        difference = value - ours[quantity]
        flagged = not abs(difference) <= _TOLERANCE_NS
        rows.append(
            HtaRow(
                rank=key, quantity=quantity, ours_ns=ours[quantity], hta_ns=value, difference_ns=difference,
                flagged=flagged, cause=_cause(view, quantity, abs(difference), sets) if flagged else None,
            )
        )  # fmt: skip
    return rows


def _cause(view: RankView, quantity: str, difference: float, sets: _Sets) -> str:
    """What we know of that makes HTA count differently."""
    if quantity == "overlap_time" and difference <= _TOLERANCE_NS + _OVERLAP_STEP * total(sets.communication):
        return "HTA rounds the overlap to 0.01 %"
    if view.launches is None:
        return "not explained"
    if quantity.startswith("stream_"):
        unknown = int((view.launches.launch == LAUNCH_UNKNOWN).sum())
        if unknown:
            return f"HTA takes the {unknown} records without a launch for launched by the first record of the trace"
        return "HTA subtracts where work of one stream overlaps, and does not repair durations"
    if quantity in ("compute_time", "non_compute_time", "overlap_time") and _unusual_names(view):
        return "HTA types kernels by name: communication kernels of other libraries count as computation there"
    return "HTA leaves out device work whose launch is outside the recorded steps, and does not repair durations"


def _unusual_names(view: RankView) -> bool:
    """Is there communication that HTA's name patterns do not know?"""
    table = view.timeline
    spans = {(int(item.busy[0, 0]), int(item.busy[-1, 1])) for item in view.communications if len(item.busy)}
    rows = table.rows(Class.KERNEL).tolist()
    names = {table.names[table.name[row]] for row in rows if (int(table.start[row]), int(table.end[row])) in spans}
    return any(not name.startswith(("nccl", "hip", "hccl")) and "ncclKernel" not in name for name in names)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """HTA logs and warns about everything it does."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
