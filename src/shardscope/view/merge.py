"""One Perfetto trace of all ranks of a run."""

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip

from shardscope import beside
from shardscope.attribution.analysis import Analysis
from shardscope.attribution.api import analyse, analyse_run
from shardscope.attribution.kinds import Patterns
from shardscope.errors import ResultError, TraceError, cannot_write
from shardscope.measure.record import load_run
from shardscope.trace.find import load_files
from shardscope.trace.table import Timeline
from shardscope.view.events import read_events
from shardscope.view.rank import RankWriter
from shardscope.view.tracks import OwnTracks, own_tracks
from shardscope.view.writer import Sink, Spool

__all__ = ["Merged", "merge"]

_COMPRESSION = 1  # isal's, of 0 to 3
_DAY_NS = 86_400_000_000_000


@dataclass
class Merged:
    """What a merged trace holds."""

    path: Path
    bytes: int
    ranks: list[str] = field(default_factory=list)
    slices: int = 0  # of the files
    own_slices: int = 0
    arrows: int = 0  # between ranks
    trace_arrows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Source:
    """One rank. `distance` leads from its files' clock to the common one, `own_distance` from attribution's."""

    rank: int | None
    name: str
    files: list[Path]
    keys: list[int]  # of its views in the analysis, one per device
    earliest: int  # on the common clock
    distance: int
    own_distance: int


@dataclass
class _Run:
    sources: list[_Source]
    own: dict[int, OwnTracks]
    arrows: int
    notes: list[str]


def merge(
    paths: Sequence[Path],
    output: Path,
    *,
    salvage: bool = False,
    ranks: Mapping[Path, int] | None = None,
    patterns: Path | None = None,
) -> Merged:
    """Write `output` (a gzipped Perfetto trace) from one of our runs' folders, a folder of traces, or trace files.

    Everything timed in the files is kept as it is; to it come our own tracks. Clocks are aligned by the attribution's
    offsets. The file appears whole or not at all. `salvage`, `ranks`, `patterns`: as for attribute_paths. Raises
    ShardscopeError.
    """
    paths = [Path(path) for path in paths]
    run = _prepare(paths, salvage, ranks or {}, Patterns(patterns))
    merged = Merged(output, 0, arrows=run.arrows, notes=run.notes)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        beside.clear_dead(output)
        handle, name = tempfile.mkstemp(prefix=beside.prefix(output), dir=output.parent)
        fresh = Path(name)
        try:
            with os.fdopen(handle, "wb") as file, _compressed(file) as out:
                _write(out, run, merged, output.parent, salvage)
            fresh.chmod(0o644)
            fresh.replace(output)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(cannot_write(output, error)) from error
    merged.bytes = output.stat().st_size
    return merged


def _compressed(file: BinaryIO) -> Any:
    # No name and no time inside: the same run gives the same bytes.
    return igzip.IGzipFile("", "wb", _COMPRESSION, file, mtime=0)  # type: ignore[no-untyped-call]


def _write(out: Sink, run: _Run, merged: Merged, folder: Path, salvage: bool) -> None:
    # Times count from the epoch where the traces know it. None may be negative, even a while before the first.
    origin = max(0, _DAY_NS - min(source.earliest for source in run.sources))
    uuid = 1
    width = len(str(max(source.rank or 0 for source in run.sources)))
    for place, source in enumerate(run.sources):
        with tempfile.TemporaryFile(dir=folder) as spool_file:
            spool = Spool(spool_file)
            events = read_events(source.files, spool, salvage=salvage)
            writer = RankWriter(
                out,
                place,
                source.name,
                _sort_name(source, width),
                uuid,
                source.distance + origin,
                source.own_distance + origin,
            )
            writer.write(events, [run.own.pop(key) for key in source.keys], spool)
            uuid = writer.next_uuid
        merged.ranks.append(source.name)
        merged.slices += writer.slices
        merged.own_slices += writer.own_slices
        merged.trace_arrows += writer.arrows
        merged.left_out += writer.left_out


def _prepare(paths: Sequence[Path], salvage: bool, ranks: Mapping[Path, int], patterns: Patterns) -> _Run:
    """Find the ranks, attribute them, and keep only what is drawn."""
    if len(paths) == 1 and (paths[0] / "run.json").is_file() and not salvage:
        return _prepare_run(paths[0])
    files = load_files(paths, salvage=salvage, ranks=ranks)
    found = [_Found(rank, timeline) for rank, timeline in files.timelines]  # before attribution moves them
    notes = [f"{path.name} left out: {reason}" for path, reason in files.skipped]
    try:
        return _run(found, {}, analyse(files, patterns=patterns), notes)
    except TraceError as error:
        return _run(found, {}, None, [*notes, f"no attribution: {error}"])


def _prepare_run(folder: Path) -> _Run:
    """One of our own runs: its record knows the stages and every communication call."""
    record = load_run(folder)
    lines = record.plan.stages if record.plan else ()
    stages = {rank: stage for line in lines for stage, rank in enumerate(line)}
    analysis = analyse_run(folder)
    timelines = {id(view.timeline): (view.rank, view.timeline) for _, view in sorted(analysis.views.items())}
    found = [_Found(rank, timeline) for rank, timeline in timelines.values()]
    for item, shift in zip(found, _shifts(found), strict=True):
        item.start -= shift
    notes = [f"{Path(item.file).name} left out: {item.reason}" for item in analysis.result.skipped_files]
    return _run(found, stages, analysis, notes)


class _Found:
    """A rank's timeline and its earliest event on its own clock."""

    def __init__(self, rank: int | None, timeline: Timeline) -> None:
        self.rank, self.timeline, self.start = rank, timeline, int(timeline.start.min())


def _shifts(found: Sequence[_Found]) -> list[int]:
    """How far attribution moves each timeline: to the earliest base, if every file has one."""
    bases = [item.timeline.base_ns for item in found]
    return [base - min(bases) if all(bases) else 0 for base in bases]


def _run(found: Sequence[_Found], stages: Mapping[int, int], analysis: Analysis | None, notes: list[str]) -> _Run:
    offsets = analysis.result.clock.offset_ns if analysis is not None else {}
    views = analysis.views if analysis is not None else {}
    sources = []
    for item, shift in zip(found, _shifts(found), strict=True):
        rank, timeline = item.rank, item.timeline
        name = f"rank {rank}" if rank is not None else f"rank unknown · {timeline.path.name}"
        if rank is not None and rank in stages:
            name += f" · stage {stages[rank]}"
        epoch = timeline.base_ns if all(other.timeline.base_ns for other in found) else 0
        keys = [key for key, view in views.items() if view.timeline is timeline]
        distance = epoch - next((offsets[str(key)] for key in keys if str(key) in offsets), 0)
        files = list(timeline.parts or (timeline.path,))
        sources.append(_Source(rank, name, files, keys, item.start + distance, distance, distance - shift))
    own, arrows = own_tracks(analysis) if analysis is not None else ({}, 0)
    return _Run(sources, own, arrows, notes)


def _sort_name(source: _Source, width: int) -> str:
    """Names of top tracks are sorted as text: spaces, which the page shows as one, put rank 2 before rank 10."""
    if source.rank is None:
        return source.name
    return f"rank {str(source.rank).rjust(width)}{source.name.removeprefix(f'rank {source.rank}')}"
