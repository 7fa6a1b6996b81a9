"""The summary step for a terminal: where it went, what communication cost, who waited for whom, what to beware of."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from shardscope.attribution.flags import WORDS
from shardscope.attribution.result import Attribution, Clock, PipelineBubble, RankResult, StepRow
from shardscope.attribution.stragglers import over_steps
from shardscope.attribution.words import counted, duration, printable, ranks_text, table
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["as_text", "rank_name", "shown_row"]

_LEVELS = {
    Evidence.METADATA: "metadata on the event",
    Evidence.OP: "the operation that caused it",
    Evidence.NAME: "its name only",
    Evidence.UNKNOWN: "nothing",
}


def as_text(result: Attribution) -> str:
    """Sections with a heading each. Names from traces are made printable."""
    lines = [*_head(result), "", "WHERE THE STEP WENT, in % of the step; a line adds up to 100", *_shares(result)]
    for heading, body in (
        ("COMMUNICATION, in % of the step", _communication(result)),
        ("BY PARALLELISM, of the step; only what compute does not hide", _axes(result)),
        ("PIPELINE", [_pipeline(pipeline) for pipeline in result.pipelines]),
        ("WHO KEEPS THE OTHERS WAITING", _stragglers(result)),
        ("TO BEAR IN MIND", _remarks(result)),
    ):
        if body:
            lines += ["", heading, *body]
    return "\n".join(printable(line) for line in lines) + "\n"


def shown_row(rank: RankResult, result: Attribution) -> StepRow | None:
    """The row of the summary step; without a step that all ranks have, the rank's own median step."""
    found = next((row for row in rank.steps if row.step == result.summary_step), None)
    if found is None and result.summary_step is None and rank.steps:
        order = sorted(rank.steps, key=lambda row: row.window_ns)
        return order[(len(order) - 1) // 2]
    return found


def rank_name(rank: RankResult) -> str:
    """ "3", "?" when it is unknown, "3.1" for device 1 where a process used several."""
    name = "?" if rank.rank is None else str(rank.rank)
    return name if rank.device_index is msgspec.UNSET else f"{name}.{rank.device_index}"


def _rows(result: Attribution) -> list[tuple[RankResult, StepRow]]:
    return [(rank, row) for rank in result.ranks if (row := shown_row(rank, result)) is not None]


def _head(result: Attribution) -> list[str]:
    count = len(result.ranks)
    devices = ", ".join(sorted({rank.device for rank in result.ranks}))
    files = sum(len(rank.files) for rank in result.ranks if rank.device_index in (msgspec.UNSET, None, 0))
    lines = [f"{counted(count, 'rank')} on {devices}, from {counted(files, 'file')}"]
    complete = max((len(rank.steps) for rank in result.ranks), default=0)
    if result.summary_step is not None:
        which = "the only complete one" if complete == 1 else f"the median one of {complete} complete steps"
        return [*lines, f"Step {result.summary_step}: {which}. All numbers below are of this one real step."]
    if any(row.step is not None for _, row in _rows(result)):
        return [*lines, "No step is in every trace: each line below is the rank's own median step."]
    return [*lines, "The traces mark no steps: everything recorded is taken as one."]


def _shares(result: Attribution) -> list[str]:
    rows = _rows(result)
    kinds = [kind for kind in Kind if any(row.attributed_ns.get(kind) for _, row in rows)]
    bubble = any(row.bubble_ns is not None for _, row in rows)
    copies = any(row.copies_exposed_ns for _, row in rows)
    header = ["rank", "step", "compute", *(_word(kind) for kind in kinds)]
    header += ["copies"] * copies + ["bubble"] * bubble + ["idle/host"]
    cells = []
    for rank, row in rows:
        line = [rank_name(rank), duration(row.window_ns), _share(row.compute_ns, row)]
        line += [_share(row.attributed_ns.get(kind, 0), row) for kind in kinds]
        line += [_share(row.copies_exposed_ns, row)] * copies + [_share(row.bubble_ns, row)] * bubble
        cells.append([*line, _share(row.host_other_ns, row)])
    notes = ["Communication counts here only while the rank computes nothing; what compute hides costs nothing."]
    if bubble:
        notes.append("bubble: the pipeline has no work for this stage yet, or any more.")
    return [*table(header, cells), *notes, *_idle(rows)]


def _idle(rows: Sequence[tuple[RankResult, StepRow]]) -> list[str]:
    """idle/host explained where it is above a tenth of the step, ranks with one cause together."""
    lines = ["idle/host: the rest, when none of these runs."]
    found: dict[str, list[tuple[RankResult, StepRow, float]]] = defaultdict(list)
    for rank, row in rows:
        if row.host_cause is not None:
            words = WORDS.get(row.host_cause.cause, f"inside {row.host_cause.annotation}")
            found[words].append((rank, row, row.host_cause.fraction))
    for words, items in found.items():
        names = ranks_text([rank_name(rank) for rank, _, _ in items])
        share = _range(row.host_other_ns / row.window_ns for _, row, _ in items)
        lines.append(f"  {names}: {share} % of the step; {_range(part for _, _, part in items)} % of that {words}")
    return lines


def _range(fractions: Iterable[float]) -> str:
    values = [round(100 * fraction) for fraction in fractions]
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}–{max(values)}"


def _communication(result: Attribution) -> list[str]:
    rows = [(rank, row) for rank, row in _rows(result) if row.busy_ns]
    if not rows:
        return []
    header = ["rank", "in all", "hidden by compute", "exposed", "of it moving data", "of it waiting for others"]
    cells = []
    for rank, row in rows:
        busy, spent = sum(row.busy_ns.values()), sum(row.attributed_ns.values())
        waited = None if row.attributed_wait_ns is None else sum(row.attributed_wait_ns.values())
        moved = None if waited is None else spent - waited
        mark = "*" if row.bounds and waited is not None else ""
        line = [rank_name(rank), _share(busy, row), _share(sum(row.overlapped_ns.values()), row), _share(spent, row)]
        cells.append([*line, *(_told(part, row, result.clock) + mark for part in (moved, waited))])
    lines = table(header, cells)
    if any("<" in cell for line in cells for cell in line):
        lines.append("< shorter than the clocks disagree by: cannot be told from none")
    if any(row.bubble_ns for _, row in rows):
        lines.append("waiting for another stage's message is in the bubble, not here")
    if any(row.bounds for _, row in rows):
        lines.append(f"* a bound, not exact: {'; '.join(_why_bounds(result, rows))}")
    if any(row.attributed_wait_ns is None for _, row in rows):
        lines.append("– the other ranks' side is not known, so waiting cannot be told from moving data")
    return [*lines, *_evidence(rows)]


def _why_bounds(result: Attribution, rows: Sequence[tuple[RankResult, StepRow]]) -> list[str]:
    kinds = {kind for _, row in rows for kind in row.busy_ns}
    reasons = []
    if result.missing_ranks:
        reasons.append("some ranks have no trace")
    if Kind.ALL_TO_ALL in kinds:
        reasons.append("an all-to-all may move data before the last rank arrives")
    if Kind.SEND_RECEIVE in kinds and any(rank.device == "cpu" for rank, _ in rows):
        reasons.append("gloo records a message until it is waited for")
    return reasons or ["not every collective could be matched across ranks"]


def _evidence(rows: Sequence[tuple[RankResult, StepRow]]) -> list[str]:
    by_text: dict[str, list[str]] = defaultdict(list)
    for rank, _ in rows:
        parts = [
            f"{_LEVELS[level]} {100 * share:.0f} %"
            for level in Evidence
            if (share := rank.evidence_fraction.get(level, 0))
        ]
        by_text[", ".join(parts)].append(rank_name(rank))
    prefix = "the kind of a communication is told by"
    if len(by_text) == 1:
        return [f"{prefix}: {next(iter(by_text))}"]
    return [f"{prefix} ({ranks_text(names)}): {text}" for text, names in by_text.items()]


def _axes(result: Attribution) -> list[str]:
    lines = []
    for rank, row in _rows(result):
        if not any(axis is not Axis.UNKNOWN for axis in row.attributed_by_axis_ns):
            continue
        parts = [
            (spent, f"{'' if axis is Axis.UNKNOWN else f'{axis} '}{_word(kind)} {_share(spent, row)} %")
            for kind, axes in row.attributed_by_kind_axis_ns.items()
            for axis, spent in axes.items()
        ]
        if row.bubble_ns is not None:
            parts.append((row.bubble_ns, f"bubble {_share(row.bubble_ns, row)} %"))
        parts.sort(key=lambda part: -part[0])
        lines.append(f"rank {rank_name(rank)}: {', '.join(text for _, text in parts)}")
    return lines


def _pipeline(pipeline: PipelineBubble) -> str:
    name = f"{ranks_text([str(rank) for rank in pipeline.ranks])}: bubble"
    if pipeline.measured_fraction is None:
        return f"{name} not measurable: {pipeline.reason}"
    bound = " at most (no micro-batch marks)" if pipeline.upper_bound else ""
    text = f"{name} {100 * pipeline.measured_fraction:.1f} % of the pipeline's time{bound}"
    if pipeline.closed_form_fraction is None:
        return text
    batches = "" if pipeline.micro_batches is None else f" with {pipeline.micro_batches} micro-batches"
    return f"{text}; equal stages{batches} would have {100 * pipeline.closed_form_fraction:.1f} %"


def _stragglers(result: Attribution) -> list[str]:
    """Ranked by the exposed waiting in the collectives a rank was last in; messages have a time of posting only."""
    matched = [item for item in result.collectives if item.step == result.summary_step]
    late = [item for item in over_steps(result, result.summary_step) if item.caused_ns]
    if not late:
        return []
    messages = sum(item.kind is Kind.SEND_RECEIVE for item in matched)
    verb = "post" if messages == len(matched) else "arrive or to post" if messages else "arrive"
    of = " and ".join(
        counted(count, word)
        for count, word in ((len(matched) - messages, "collective"), (messages, "message"))
        if count
    )
    residual = result.clock.residual_ns or 0
    lines = [
        f"rank {item.rank}: {'< ' if item.caused_ns < residual else ''}{duration(max(item.caused_ns, residual))} of "
        f"exposed waiting over all ranks; last to {verb} in {item.last} of {of}"
        for item in late[:3]
    ]
    close = sum(item.last_rank is None for item in matched)
    if close:
        lines.append(f"in {close} of them no rank was last by more than the clocks can tell")
    return lines


def _remarks(result: Attribution) -> list[str]:
    lines = []
    rows = _rows(result)
    if any(rank.device == "cpu" and row.busy_ns for rank, row in rows):
        lines.append("on a CPU, exposed communication is the most that removing it could gain: both use the same cores")
    if result.clock.applied:
        moved = ", ".join(f"rank {rank} by {duration(ns)}" for rank, ns in result.clock.offset_ns.items())
        lines.append(f"clocks aligned by the ends of collectives: {moved}")
    if result.clock.residual_ns is not None:
        within = f"within {duration(result.clock.residual_ns)}; nothing shorter is claimed across ranks"
        lines.append(f"clocks agree {within if result.clock.residual_ns else 'to the nanosecond'}")
    if result.missing_ranks:
        lines.append(f"no trace of {ranks_text([str(rank) for rank in result.missing_ranks])}")
    lines += [f"left out: {item.file}: {item.reason}" for item in result.skipped_files]
    lines += _together(rows, lambda row: ["unusually long or short step"] if row.outlier else [])
    repairs: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for rank in result.ranks:
        for warning in rank.warnings:
            repairs[warning.code, warning.detail].append((rank_name(rank), warning.count))
    for (code, detail), found in repairs.items():
        count = sum(number for _, number in found)
        lines.append(f"{ranks_text([name for name, _ in found])}: {code} × {count}: {detail}")
    return lines


def _together(rows: Sequence[tuple[RankResult, StepRow]], say: Callable[[StepRow], Sequence[str]]) -> list[str]:
    found: dict[str, list[str]] = defaultdict(list)
    for rank, row in rows:
        for text in say(row):
            found[text].append(rank_name(rank))
    return [f"{ranks_text(names)}: {text}" for text, names in found.items()]


def _word(kind: Kind) -> str:
    return kind.replace("_", "-")


def _share(value: int | None, row: StepRow) -> str:
    return "–" if value is None else f"{100 * value / row.window_ns:.1f}" if row.window_ns else "0.0"


def _told(value: int | None, row: StepRow, clock: Clock) -> str:
    """A share that rests on two ranks' clocks: nothing below their disagreement is claimed."""
    residual = clock.residual_ns or 0
    return f"< {_share(residual, row)}" if value is not None and value < residual else _share(value, row)
