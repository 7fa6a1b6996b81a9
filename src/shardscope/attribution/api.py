"""From traces to an Attribution: our own runs with their record, or any files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardscope.attribution import bubble, clock
from shardscope.attribution.analysis import Analysis, remember
from shardscope.attribution.kinds import Patterns
from shardscope.attribution.ledger import Frame, RowParts, build_row, communications_by_step
from shardscope.attribution.match import match_all, split_waits
from shardscope.attribution.prepare import prepare
from shardscope.attribution.result import Attribution, PipelineBubble, SkippedFile
from shardscope.attribution.stragglers import stragglers
from shardscope.attribution.summary import choose_step, collective_rows, rank_result
from shardscope.attribution.view import RankView
from shardscope.attribution.worlds import say_far_clocks, say_step_ranges, split_worlds
from shardscope.errors import EmptyTrace, ResultError
from shardscope.measure.record import CommunicationCall, RunRecord, load_run
from shardscope.trace.find import Found, assign_ranks, collect, load_files
from shardscope.trace.parallel import read_all
from shardscope.trace.table import Timeline
from shardscope.vocabulary import Status

__all__ = ["Inputs", "analyse", "analyse_run", "attribute_paths", "attribute_run", "find_inputs"]


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
    work = _of_run(folder)
    return analyse(load_files(work.files, ranks=work.ranks), work.plan)


@dataclass(frozen=True)
class Inputs:
    """The trace files to analyse, whose they are where that is told, what was passed over, and what a run planned."""

    files: Sequence[Path]
    ranks: Mapping[Path, int]
    skipped: list[tuple[Path, str]]
    plan: _Plan


def find_inputs(paths: Sequence[Path], ranks: Mapping[Path, int] | None = None) -> Inputs:
    """What there is to read under the paths. Raises ShardscopeError when there is nothing."""
    if len(paths) == 1 and (paths[0] / "run.json").is_file():
        return _of_run(paths[0])
    files, skipped = collect(paths)
    return Inputs(files, ranks or {}, skipped, _Plan())


def _of_run(folder: Path) -> Inputs:
    record = load_run(folder)
    if record.status is not Status.OK:
        raise ResultError(f"{folder}: nothing to attribute, the run is {record.status.value} ({record.reason})")
    paths = [folder / trace.file for trace in record.traces]
    if not paths:
        raise ResultError(f"{folder}: the run lists no traces; measure it again")
    for path in paths:
        if path.resolve().parent != folder.resolve():
            raise ResultError(f"{folder}: run.json names a trace outside its folder ({path.name}); measure it again")
    ranks = {path: trace.rank for path, trace in zip(paths, record.traces, strict=True)}
    return Inputs(paths, ranks, [], _plan_of(record))


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
    inputs = find_inputs([Path(path) for path in paths], ranks)
    named = Patterns(patterns)  # a bad pattern file is told before the long reading
    found = assign_ranks(read_all(inputs.files, salvage=salvage), inputs.skipped, inputs.ranks)
    return analyse(found, inputs.plan, named).result


def analyse(found: Found, plan: _Plan | None = None, patterns: Patterns | None = None) -> Analysis:
    """Everything between loaded timelines and the result."""
    plan, patterns = plan or _Plan(), patterns or Patterns()
    skipped = [SkippedFile(file=str(path), reason=reason) for path, reason in found.skipped]
    views = _views(found, plan, patterns, skipped)
    compared = {key: view for key, view in views.items() if not view.secondary}
    worlds = split_worlds(compared)
    say_step_ranges(compared)
    matches = [match for world in worlds for match in match_all(world)]
    offsets, clocks = clock.align(matches, sorted(compared))
    say_far_clocks(compared, offsets)
    given_up = split_waits(matches, offsets, clocks.residual_ns or 0)
    for reason, count in given_up.items():
        views[min(views)].warn("unmatched", count, f"collectives whose record contradicts the clocks: {reason}")
    pipelines = [
        pipeline
        for world in worlds
        for pipeline in bubble.find_pipelines(world, matches, plan.stages, plan.bubble_fraction)
    ]
    parts: dict[tuple[int, int | None], RowParts] = {}
    for pipeline in pipelines:
        bubble.frames(pipeline, views, offsets)
    frames = {key: frame for pipeline in pipelines for key, frame in pipeline.frames.items()}
    for key, view in views.items():
        items, launched = communications_by_step(view)
        for index, step in enumerate(view.steps):
            frame = _usable(frames.get((key, step.number)), items[index])
            parts[key, step.number] = build_row(view, index, items[index], launched[index], frame)
    summary = choose_step(views)
    bubbles: list[PipelineBubble] = [bubble.summarise(p, views, parts, offsets, summary) for p in pipelines]
    result = Attribution(
        summary_step=summary,
        ranks=[
            rank_result(key, views[key], parts, summary) for key in sorted(views, key=lambda key: _order(views[key]))
        ],
        collectives=collective_rows(matches, parts, clocks),
        pipelines=bubbles,
        clock=clocks,
        missing_ranks=_missing(views, plan.ranks),
        skipped_files=skipped,
        stragglers=stragglers(matches, parts),
    )
    return remember(Analysis(result, views, parts, matches))


def _views(found: Found, plan: _Plan, patterns: Patterns, skipped: list[SkippedFile]) -> dict[int, RankView]:
    """By rank; those that are no rank's only view by a negative number."""
    bases = [timeline.base_ns for _, timeline in found.timelines]
    # Without a base in every file their distances mean nothing; the collectives' ends align the clocks then.
    base = min(bases) if all(bases) else None
    views: dict[int, RankView] = {}
    for rank, timeline in found.timelines:
        if base is not None:
            _shift(timeline, timeline.base_ns - base)
        sidecar = plan.sidecar.get(rank) if rank is not None else None
        for view in prepare(rank, timeline, sidecar, patterns):
            if view.steps:
                views[-1 - len(views) if rank is None or view.secondary else rank] = view
            elif not view.secondary:
                skipped.append(SkippedFile(file=str(timeline.path), reason="no step is complete"))
    if not views:
        raise EmptyTrace(f"{found.timelines[0][1].path}: no complete step; profile at least one whole step")
    return views


def _order(view: RankView) -> tuple[bool, int, bool, int]:
    return view.rank is not None, view.rank or 0, view.secondary, view.device_index or 0


def _usable(frame: Frame | None, items: Sequence[object]) -> Frame | None:
    """A bubble needs every send and receive of the step to be understood."""
    blind = any(getattr(item, "direction", None) is not None and getattr(item, "waits", None) is None for item in items)
    return None if blind else frame


def _shift(timeline: Timeline, distance: int) -> None:
    if distance:
        timeline.start += distance
        timeline.end += distance


def _missing(views: Mapping[int, RankView], wanted: frozenset[int] | None) -> list[int]:
    known = {rank for rank in views if rank >= 0}
    if wanted is None:
        sizes = [view.world_size for view in views.values() if view.world_size]
        wanted = frozenset(range(max(sizes, default=0))) if known else frozenset()
    return sorted(wanted - known)
