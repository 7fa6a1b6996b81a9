"""What is in trace files, what was repaired, and what cannot be said from them and why."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from shardscope.attribution.analysis import analysis_of
from shardscope.attribution.api import analyse, find_inputs
from shardscope.attribution.groups import Group as NamedGroup
from shardscope.attribution.groups import GroupTable
from shardscope.attribution.kinds import Patterns
from shardscope.attribution.prepare import REPAIRS, device_name
from shardscope.attribution.result import Attribution, SkippedFile, Warn
from shardscope.attribution.steps import step_numbers
from shardscope.attribution.view import RankView
from shardscope.attribution.words import duration
from shardscope.errors import ShardscopeError
from shardscope.trace.events import Class
from shardscope.trace.find import assign_ranks, rank_of, rank_of_name
from shardscope.trace.parallel import read_each
from shardscope.trace.table import Timeline
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["Diagnosis", "FileReport", "Group", "Unsaid", "examine"]

_CLASSES = {
    Class.HOST_OP: "operators",
    Class.ANNOTATION: "annotations",
    Class.RUNTIME: "launch calls",
    Class.KERNEL: "kernels",
    Class.COPY: "copies",
}


class Group(msgspec.Struct, kw_only=True):
    """A process group as the file describes it; `ranks` None where the list is absent or shortened.

    `axis_from`: "name" of the group, "record" of the run (run.json), "traffic" and the ranks it runs between,
    "unused" where nothing recorded goes over these ranks, or "nothing".
    """

    name: str
    axis: Axis
    size: int | None
    ranks: tuple[int, ...] | None
    axis_from: str = "nothing"


class FileReport(msgspec.Struct, kw_only=True):
    """One file that can be read. `events` are those that can be time, `ignored` those that never are, by category."""

    file: str
    bytes: int
    compressed: bool
    rank: int | None
    rank_from: str  # "inside", "name", "given", "record" (run.json), "nothing"
    world_size: int | None
    device: str
    devices: list[int]
    span_ns: int
    steps: list[int]
    events: dict[str, int]
    ignored: dict[str, int]
    groups: list[Group]
    repairs: list[Warn]
    cut: str | None


class Unsaid(msgspec.Struct, kw_only=True):
    """Something that these files cannot tell, and why or what would help."""

    what: str
    why: str


class Diagnosis(msgspec.Struct, kw_only=True):
    """`analysable`: does `shardscope attribute` give numbers for these files? If not, `refused` says why."""

    schema: int = 1
    analysable: bool
    files: list[FileReport]
    refused: list[SkippedFile]
    left_out: list[SkippedFile]
    missing_ranks: list[int]
    remarks: list[Warn]
    unsaid: list[Unsaid]


def examine(
    paths: Sequence[Path],
    *,
    salvage: bool = False,
    ranks: Mapping[Path, int] | None = None,
    patterns: Path | None = None,
) -> Diagnosis:
    """Look at every file by itself, then at what they say together. Raises ShardscopeError when there is no file."""
    inputs = find_inputs(paths, ranks)
    named = Patterns(patterns)
    explicit = {path.resolve(): rank for path, rank in inputs.ranks.items()}
    timelines: list[Timeline] = []
    refused: list[SkippedFile] = []
    for path, outcome in zip(inputs.files, read_each(inputs.files, salvage=salvage), strict=True):
        if isinstance(outcome, ShardscopeError):
            refused.append(SkippedFile(file=str(path), reason=str(outcome).removeprefix(f"{path}: ")))
        else:
            timelines.append(outcome)
    diagnosis = Diagnosis(
        analysable=False, files=[_report(timeline, explicit) for timeline in timelines], refused=refused,
        left_out=[SkippedFile(file=str(path), reason=reason) for path, reason in inputs.skipped],
        missing_ranks=[], remarks=[], unsaid=[],
    )  # fmt: skip
    if refused or not timelines:
        return diagnosis
    try:
        analysis = analyse(assign_ranks(timelines, inputs.skipped, inputs.ranks), inputs.plan, named)
    except ShardscopeError as error:
        where = ", ".join(sorted({str(path) for path in paths}))
        refused.append(SkippedFile(file=where, reason=str(error).removeprefix(f"{where}: ")))
        return diagnosis
    result = analysis.result
    diagnosis.analysable = True
    own = inputs.plan.ranks is not None
    for report in diagnosis.files:
        report.rank_from = "record" if own and report.rank_from == "given" else report.rank_from
        _find_axes(report, [view for view in analysis.views.values() if report.file in view.files], own=own)
    diagnosis.left_out, diagnosis.missing_ranks = result.skipped_files, result.missing_ranks
    diagnosis.remarks = _remarks(result)
    diagnosis.unsaid = list(_unsaid(result))
    return diagnosis


def _report(timeline: Timeline, explicit: Mapping[Path, int]) -> FileReport:
    path = timeline.path
    groups = GroupTable(timeline.metadata)
    rank = rank_of(timeline, explicit)
    source = "given" if path.resolve() in explicit else "name" if rank == rank_of_name(path.name) else "inside"
    if _says_rank(timeline) and source == "name":
        source = "inside"
    kernels = (timeline.kind == Class.KERNEL) & (timeline.device >= 0)
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return FileReport(
        file=str(path), bytes=path.stat().st_size, compressed=compressed, rank=rank,
        rank_from="nothing" if rank is None else source, world_size=groups.world_size, device=device_name(timeline),
        devices=np.unique(timeline.device[kernels]).tolist(), span_ns=int(timeline.end.max() - timeline.start.min()),
        steps=sorted(step_numbers(timeline)),
        events={word: found for kind, word in _CLASSES.items() if (found := len(timeline.rows(kind)))},
        ignored=dict(timeline.dropped.most_common()),
        groups=[_group(name, group) for name, group in groups.groups.items()],
        repairs=[
            Warn(code=code, count=count, detail=REPAIRS.get(code, code))
            for code, count in sorted(timeline.warnings.items())
        ],
        cut=timeline.cut,
    )  # fmt: skip


def _group(key: str, group: NamedGroup) -> Group:
    source = "nothing" if group.axis is Axis.UNKNOWN else "name"
    return Group(name=group.name or key or "?", axis=group.axis, size=group.size, ranks=group.ranks, axis_from=source)


def _find_axes(report: FileReport, views: Sequence[RankView], *, own: bool) -> None:
    """Where a group's name tells no axis, the one that the analysis found for what runs between these ranks."""
    seen = [item for view in views for item in view.communications]
    for group in report.groups:
        if group.axis is not Axis.UNKNOWN or group.ranks is None:
            continue
        axes = {item.axis for item in seen if item.group is not None and tuple(sorted(item.group)) == group.ranks}
        told = axes - {Axis.UNKNOWN}
        if len(told) == 1:
            group.axis, group.axis_from = told.pop(), "record" if own else "traffic"
        elif not axes and all(item.group is not None for item in seen):
            group.axis_from = "unused"


def _says_rank(timeline: Timeline) -> bool:
    info = timeline.metadata.get("distributedInfo")
    return isinstance(info, dict) and info.get("rank") is not None


def _remarks(result: Attribution) -> list[Warn]:
    """What the analysis itself had to leave out or decide, without the repairs that stand beside each file."""
    found: Counter[tuple[str, str]] = Counter()
    for rank in result.ranks:
        for warning in rank.warnings:
            if warning.code not in REPAIRS:
                found[warning.code, warning.detail] += warning.count
    return [Warn(code=code, count=count, detail=detail) for (code, detail), count in found.items()]


def _unsaid(result: Attribution) -> Iterator[Unsaid]:
    rows = [row for rank in result.ranks for row in rank.steps]
    communicating = [row for row in rows if row.busy_ns]
    if any(rank.rank is None for rank in result.ranks):
        yield Unsaid(what="whose trace it is", why="no rank inside nor in the file's name; say --rank FILE=N")
    if any(row.step is None for row in rows):
        yield Unsaid(what="single steps", why="no ProfilerStep marks; call the profiler's step() once per step")
    elif result.summary_step is None:
        yield Unsaid(what="one step on all ranks", why="the ranks' traces have no step in common")
    if result.missing_ranks and any(row.wait_ns for row in communicating):
        yield Unsaid(what="exact waiting times", why="ranks have no trace; what is said is a bound")
    if any(row.wait_ns is None for row in communicating):
        yield Unsaid(
            what="waiting apart from transferring, on every rank",
            why="collectives could not be matched with another rank's trace",
        )
    unknown = sum(row.busy_ns.get(Kind.UNKNOWN, 0) for row in rows)
    if unknown:
        share = unknown / max(1, sum(sum(row.busy_ns.values()) for row in rows))
        yield Unsaid(
            what=f"the kind of {100 * share:.0f} % of the communication", why="nothing names it; see --patterns"
        )
    if any(rank.evidence_fraction.get(Evidence.NAME) for rank in result.ranks):
        yield Unsaid(
            what="the kind of some communication for certain",
            why="only the kernel's name tells it, and names lie; record with NCCL metadata or operators",
        )
    if communicating and all(set(row.attributed_by_axis_ns) <= {Axis.UNKNOWN} for row in communicating):
        yield Unsaid(what="which parallelism communicates", why="process groups have no telling names")
    for pipeline in result.pipelines:
        if pipeline.measured_fraction is None:
            yield Unsaid(what="the pipeline bubble", why=str(pipeline.reason))
    yield from _unsaid_bandwidth(result)
    yield from _unsaid_of_device(result)
    yield Unsaid(what="memory and throughput", why="a trace does not hold them")


def _unsaid_bandwidth(result: Attribution) -> Iterator[Unsaid]:
    if result.collectives and not any(item.busbw_bytes_per_s for item in result.collectives):
        if not any(item.bytes for item in result.collectives):
            why = "no message sizes are recorded"
        elif result.clock.residual_ns is None:
            why = "nothing tells how well the ranks' clocks agree"
        else:
            why = f"transfers are short beside what the clocks disagree by ({duration(result.clock.residual_ns)})"
        yield Unsaid(what="bandwidths", why=why)


def _unsaid_of_device(result: Attribution) -> Iterator[Unsaid]:
    views = [view for view in analysis_of(result).views.values() if view.launches is not None]
    if any(rank.device == "cpu" for rank in result.ranks):
        yield Unsaid(
            what="what removing communication would gain",
            why="on a CPU it shares the cores with compute: exposed time is an upper bound",
        )
    if views and not any(len(view.timeline.rows(Class.RUNTIME)) for view in views):
        yield Unsaid(what="whether the host was late", why="no launch calls are recorded, only device work")
