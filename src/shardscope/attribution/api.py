"""From traces to an Attribution: our own runs with their record, or any files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardscope.attribution import bubble, clock
from shardscope.attribution.analysis import Analysis, remember
from shardscope.attribution.device import fill_device_view, has_device_work
from shardscope.attribution.groups import GroupTable
from shardscope.attribution.host import fill_host_view
from shardscope.attribution.kinds import Patterns
from shardscope.attribution.ledger import Frame, RowParts, build_row, communications_by_step
from shardscope.attribution.marks import find_marks
from shardscope.attribution.match import match_all, split_waits
from shardscope.attribution.result import Attribution, PipelineBubble, SkippedFile
from shardscope.attribution.salvage import drop_cut_steps, drop_steps_without_spans
from shardscope.attribution.steps import host_steps
from shardscope.attribution.summary import choose_step, collective_rows, rank_result
from shardscope.attribution.view import RankView
from shardscope.errors import EmptyTrace, ResultError
from shardscope.measure.record import CommunicationCall, RunRecord, load_run
from shardscope.trace.find import Found, load_files
from shardscope.trace.table import Timeline
from shardscope.vocabulary import Status

__all__ = ["analyse", "analyse_run", "attribute_paths", "attribute_run"]


@dataclass(frozen=True)
class _Plan:
    sidecar: Mapping[int, Sequence[CommunicationCall]] = field(default_factory=dict)
    stages: Sequence[Sequence[int]] = ()
    bubble_fraction: float | None = None
    ranks: frozenset[int] | None = None  # whose traces there should be; None: as the traces say


def attribute_run(folder: Path) -> Attribution:
    """Attribute one of our own runs (a folder with run.json). Raises ShardscopeError."""
    return analyse_run(folder).result


def analyse_run(folder: Path) -> Analysis:
    """Like attribute_run, with the sets behind the result."""
    record = load_run(folder)
    if record.status is not Status.OK:
        raise ResultError(f"{folder}: nothing to attribute, the run is {record.status.value} ({record.reason})")
    paths = [folder / trace.file for trace in record.traces]
    if not paths:
        raise ResultError(f"{folder}: the run lists no traces; measure it again")
    for path in paths:
        if path.resolve().parent != folder.resolve():
            raise ResultError(f"{folder}: run.json names a trace outside its folder ({path.name}); measure it again")
    found = load_files(paths, ranks={path: trace.rank for path, trace in zip(paths, record.traces, strict=True)})
    return analyse(found, _plan_of(record))


def _plan_of(record: RunRecord) -> _Plan:
    sidecar = {int(rank): calls for rank, calls in record.communication.items()}
    ranks = frozenset(trace.rank for trace in record.traces)
    if record.plan is None:
        return _Plan(sidecar, ranks=ranks)
    return _Plan(sidecar, record.plan.stages, record.plan.bubble_fraction, ranks)


def attribute_paths(
    paths: Sequence[Path],
    *,
    salvage: bool = False,
    ranks: Mapping[Path, int] | None = None,
    patterns: Path | None = None,
) -> Attribution:
    """Attribute trace files, folders of traces, or one of our own runs' folders.

    `salvage`: use the complete steps of a cut file. `ranks`: which rank a file belongs to, where the file does not say.
    `patterns`: a file of further kernel names (attribution/kinds.toml). Raises ShardscopeError.
    """
    paths = [Path(path) for path in paths]
    if len(paths) == 1 and (paths[0] / "run.json").is_file():
        return attribute_run(paths[0])
    return analyse(load_files(paths, salvage=salvage, ranks=ranks or {}), _Plan(), Patterns(patterns)).result


def analyse(found: Found, plan: _Plan | None = None, patterns: Patterns | None = None) -> Analysis:
    """Everything between loaded timelines and the result."""
    plan, patterns = plan or _Plan(), patterns or Patterns()
    views: dict[int, RankView] = {}
    bases = [timeline.base_ns for _, timeline in found.timelines]
    # Without a base in every file their distances mean nothing; the collectives' ends align the clocks then.
    base = min(bases) if all(bases) else None
    skipped = [SkippedFile(file=str(path), reason=reason) for path, reason in found.skipped]
    for key, (rank, timeline) in enumerate(found.timelines):
        if base is not None:
            _shift(timeline, timeline.base_ns - base)
        view = _view(rank, timeline, plan.sidecar.get(rank) if rank is not None else None, patterns)
        if not view.steps:
            skipped.append(SkippedFile(file=str(timeline.path), reason="no step is complete"))
            continue
        views[rank if rank is not None else -1 - key] = view
    if not views:
        raise EmptyTrace(f"{found.timelines[0][1].path}: no complete step; profile at least one whole step")
    matches = match_all(views)
    offsets, clocks = clock.align(matches, sorted(views))
    given_up = split_waits(matches, offsets, clocks.residual_ns or 0)
    for reason, count in given_up.items():
        views[min(views)].warn("unmatched", count, f"collectives whose record contradicts the clocks: {reason}")
    pipelines = bubble.find_pipelines(views, matches, plan.stages, plan.bubble_fraction)
    parts: dict[tuple[int, int | None], RowParts] = {}
    for pipeline in pipelines:
        bubble.frames(pipeline, views, offsets)
    frames = {key: frame for pipeline in pipelines for key, frame in pipeline.frames.items()}
    for key, view in views.items():
        items = communications_by_step(view)
        for index, step in enumerate(view.steps):
            frame = _usable(frames.get((key, step.number)), items[index])
            parts[key, step.number] = build_row(view, index, items[index], frame)
    summary = choose_step(views)
    bubbles: list[PipelineBubble] = [bubble.summarise(p, views, parts, offsets, summary) for p in pipelines]
    result = Attribution(
        summary_step=summary,
        ranks=[rank_result(key, views[key], parts, summary) for key in sorted(views)],
        collectives=collective_rows(matches, parts, clocks),
        pipelines=bubbles,
        clock=clocks,
        missing_ranks=_missing(views, plan.ranks),
        skipped_files=skipped,
    )
    return remember(Analysis(result, views, parts, matches))


def _usable(frame: Frame | None, items: Sequence[object]) -> Frame | None:
    """A bubble needs every send and receive of the step to be understood."""
    blind = any(getattr(item, "direction", None) is not None and getattr(item, "waits", None) is None for item in items)
    return None if blind else frame


def _shift(timeline: Timeline, distance: int) -> None:
    if distance:
        timeline.start += distance
        timeline.end += distance


def _view(
    rank: int | None, timeline: Timeline, sidecar: Sequence[CommunicationCall] | None, patterns: Patterns
) -> RankView:
    groups = GroupTable(timeline.metadata)
    files = [str(path) for path in timeline.parts or (timeline.path,)]
    view = RankView(rank, timeline, groups, device_name(timeline), groups.world_size, files=files)
    for code, count in sorted(timeline.warnings.items()):
        view.warn(code, count, _REPAIRS.get(code, code))
    host_steps(view)
    find_marks(view)
    drop_cut_steps(view)
    if not view.steps:
        return view
    if has_device_work(timeline):
        fill_device_view(view, patterns)
    else:
        fill_host_view(view, sidecar)
        if drop_steps_without_spans(view) and view.steps:
            fill_host_view(view, sidecar)
    return view


_REPAIRS = {
    "bad_escape": "strings with unescaped backslashes or quotes; names repaired",
    "not_a_number": "nan or inf as a number; read as absent",
    "trailing_comma": "commas before a closing bracket; ignored",
    "bad_bytes": "bytes that are not UTF-8, or control characters, in strings; names repaired",
    "malformed_event": "elements that are no events; left out",
    "no_time": "events without a usable start; left out",
    "no_duration": "events that never ended; counted as having no length",
    "negative_duration": "events with negative durations; counted as having no length",
    "duplicate_record": "device records written twice; counted once",
}


def device_name(timeline: Timeline) -> str:
    """The kind of accelerator by its runtime records; "cpu" without device work."""
    if not has_device_work(timeline):
        return "cpu"
    if any(name.startswith("hip") for name in timeline.names):
        return "hip"
    for category in timeline.categories:
        if category and category.endswith("_runtime"):
            return category.removesuffix("_runtime")
    return "cuda"


def _missing(views: Mapping[int, RankView], wanted: frozenset[int] | None) -> list[int]:
    known = {rank for rank in views if rank >= 0}
    if wanted is None:
        sizes = [view.world_size for view in views.values() if view.world_size]
        wanted = frozenset(range(max(sizes, default=0))) if known else frozenset()
    return sorted(wanted - known)
