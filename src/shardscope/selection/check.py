"""Refuse what does not add up, before anything is concluded from it."""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath

from shardscope.attribution.result import (
    ATTRIBUTION_FILE,
    INTERVALS_FILE,
    LEDGER_FILE,
    Attribution,
    StepRow,
    load_attribution,
    read_table,
)
from shardscope.errors import ResultError
from shardscope.measure.record import RunRecord, load_run
from shardscope.selection.audit import passes_gate
from shardscope.vocabulary import Kind, Status

__all__ = ["check"]


def check(run_folder: Path, attribution_folder: Path) -> None:
    """Return when the run and its attribution can carry a report.

    A run that is ok needs every figure the report shows, parity, a trace per rank that holds parameters, and a ledger
    that adds up to the nanosecond in every row. Any other run needs its reason. Raises ResultError naming the defects.
    """
    record = load_run(run_folder)
    if record.status is not Status.OK:
        if not (record.reason or "").strip():
            raise ResultError(f"{run_folder}: status {record.status} without a reason; measure it again")
        return
    figures = [*_missing_figures(record), *_times(record), *_memory(record), *_parity(record)]
    _refuse(run_folder, [*figures, *_traces(record, run_folder)])
    result = load_attribution(attribution_folder / ATTRIBUTION_FILE)
    _refuse(attribution_folder, [*_coverage(record, result), *_ledger(result), *_collectives(result)])
    tables = [*_ledger_table(attribution_folder, result), *_intervals_table(attribution_folder, result)]
    _refuse(attribution_folder, tables)


def _refuse(folder: Path, defects: list[str]) -> None:
    if defects:
        more = f" (and {len(defects) - 5} more)" if len(defects) > 5 else ""
        # Nothing downstream notices by itself that a finished result was touched, so the command has to force it.
        command = f"snakemake --cores 4 --force {folder}"
        raise ResultError(f"{folder}: {'; '.join(defects[:5])}{more}; make it again with: {command}")


def _missing_figures(record: RunRecord) -> Iterable[str]:
    if record.plan is None:
        yield "the plan is missing"
    if record.environment is None:
        yield "the environment is missing"
    if record.timing is None or not (record.timing.triples or record.timing.candidate_ns):
        yield "step times are missing"
    if record.latency is None or not record.latency.candidate_ns:
        yield "request latencies are missing"
    if not record.losses:
        yield "losses are missing"
    elif len(record.losses) != len(record.reference_losses):
        yield f"there are {len(record.losses)} losses, and {len(record.reference_losses)} of the reference"
    measured = {memory.rank for memory in record.memory}
    for rank in _ranks(record) or {0}:
        if rank not in measured:
            yield f"memory of rank {rank} is missing"


def _times(record: RunRecord) -> Iterable[str]:
    timing, latency = record.timing, record.latency
    if timing is None or latency is None:
        return
    paired = [ns for triple in timing.triples for ns in triple]
    if min([*paired, *timing.candidate_ns, *latency.candidate_ns, *latency.baseline_ns], default=1) <= 0:
        yield "a time is not positive"
    if timing.tokens_per_step != record.workload.tokens_per_step or _not_positive(timing.flops_per_step):
        yield (
            f"a step of {timing.tokens_per_step} tokens and {timing.flops_per_step} FLOPs is not one of this workload, "
            f"which has {record.workload.tokens_per_step} tokens"
        )
    peak = timing.matmul_peak_flops_per_s
    if peak is not None and not 0 < peak < math.inf:
        yield f"the matmul peak is {peak} FLOP/s"


def _not_positive(count: int | None) -> bool:
    return count is not None and count <= 0


def _memory(record: RunRecord) -> Iterable[str]:
    """The categories are sizes, and add up to the peak."""
    for memory in record.memory:
        state = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
        sizes = (memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes, memory.residue_bytes)
        if min(sizes) < 0:
            yield f"memory of rank {memory.rank} has a negative size"
        elif state + memory.other_bytes_at_peak != memory.peak_bytes or memory.peak_bytes <= 0:
            parts = state + memory.other_bytes_at_peak
            yield f"memory of rank {memory.rank} adds up to {parts} bytes, its peak is {memory.peak_bytes}"


def _ranks(record: RunRecord) -> set[int]:
    """The ranks that hold parameters, which are those that must be traced."""
    return {state.rank for state in record.plan.state if state.parameter_bytes} if record.plan is not None else set()


def _parity(record: RunRecord) -> Iterable[str]:
    parity = record.parity
    if parity is None:
        yield "parity is missing"
    elif not (math.isfinite(parity.tolerance) and parity.tolerance > 0) or parity.loss_steps < 1:
        yield f"parity was measured over {parity.loss_steps} steps with tolerance {parity.tolerance}"
    elif min(parity.gradient_error, parity.loss_error) < 0:
        yield f"parity has a negative error: {min(parity.gradient_error, parity.loss_error):.3g}"
    elif parity.passed != passes_gate(parity):
        yield (
            f"parity says {'passed' if parity.passed else 'failed'}, but its errors {parity.gradient_error:.3g} and "
            f"{parity.loss_error:.3g} against {parity.tolerance:.3g} say otherwise"
        )


def _traces(record: RunRecord, folder: Path) -> Iterable[str]:
    for rank in sorted(_ranks(record) - {trace.rank for trace in record.traces}):
        yield f"the trace of rank {rank} is missing"
    if len({trace.rank for trace in record.traces}) != len(record.traces):
        yield "two traces claim one rank"
    for trace in record.traces:
        if PurePath(trace.file).name != trace.file or trace.file in ("", ".", ".."):
            yield f"the trace of rank {trace.rank} is not a file of this folder: {trace.file!r}"
            continue
        path = folder / trace.file
        if path.is_symlink() or not path.is_file():
            yield f"the trace of rank {trace.rank} is missing: {trace.file}"
        elif path.stat().st_size != trace.bytes or not trace.bytes:
            yield f"{trace.file} has {path.stat().st_size} bytes, {trace.bytes} were written"


def _coverage(record: RunRecord, result: Attribution) -> Iterable[str]:
    wanted, found = {trace.rank for trace in record.traces}, {rank.rank for rank in result.ranks}
    for absent in sorted(wanted - {rank for rank in found if rank is not None}):
        yield f"rank {absent} was not attributed"
    if result.missing_ranks:
        yield f"ranks {', '.join(map(str, result.missing_ranks))} are missing"
    if result.skipped_files:
        yield f"{result.skipped_files[0].file} was skipped: {result.skipped_files[0].reason}"
    if len(found) != len(result.ranks):
        yield "a rank was attributed twice"
    for rank in result.ranks:
        steps = [row.step for row in rank.steps]
        if result.summary_step not in steps:
            yield f"rank {rank.rank} lacks the summary step {result.summary_step}"
        if len(set(steps)) != len(steps):
            yield f"rank {rank.rank} has a step twice"


def _ledger(result: Attribution) -> Iterable[str]:
    for rank in result.ranks:
        for row in rank.steps:
            for defect in _row(row):
                yield f"rank {rank.rank} step {row.step}: {defect}"


def _collectives(result: Attribution) -> Iterable[str]:
    known = {str(rank.rank) for rank in result.ranks}
    for number, found in enumerate(result.collectives):
        named = {*found.arrival_ns, *(found.exposed_wait_ns or {})}
        if found.last_rank is not None:
            named.add(str(found.last_rank))
        strangers = sorted(named - known)
        if strangers:
            yield f"collective {number} names rank {strangers[0]!r}, which was not attributed"


def _row(row: StepRow) -> Iterable[str]:
    if row.window_ns <= 0:
        yield f"the window is {row.window_ns} ns"
    if row.total_ns != row.window_ns:
        yield f"the parts add up to {row.total_ns} ns, the step is {row.window_ns} ns"
    parts = [row.compute_ns, row.copies_exposed_ns, row.bubble_ns or 0, row.host_other_ns, *row.attributed_ns.values()]
    if min(parts) < 0:
        yield f"a part is negative: {min(parts)} ns"
    attributed = sum(row.attributed_ns.values())
    by_axis = sum(row.attributed_by_axis_ns.values())
    if by_axis != attributed:
        yield f"the axes add up to {by_axis} ns, the kinds to {attributed} ns"
    for kind, axes in row.attributed_by_kind_axis_ns.items():
        if sum(axes.values()) != row.attributed_ns.get(kind, 0):
            yield f"{kind} by axis adds up to {sum(axes.values())} ns, not {row.attributed_ns.get(kind, 0)} ns"
    for kind, busy in row.busy_ns.items():
        parted = row.exposed_ns.get(kind, 0) + row.overlapped_ns.get(kind, 0)
        if parted != busy:
            yield f"{kind} is busy {busy} ns, but exposed and overlapped make {parted} ns"
    for kind, waited in (row.attributed_wait_ns or {}).items():
        if not 0 <= waited <= row.attributed_ns.get(kind, 0):
            yield f"{kind} waits {waited} ns of {row.attributed_ns.get(kind, 0)} ns"


def _ledger_table(folder: Path, result: Attribution) -> Iterable[str]:
    """ledger.csv, which people and figures read, holds the rows of attribution.json, and each adds up."""
    rows = read_table(folder / LEDGER_FILE)
    expected = sum(len(rank.steps) for rank in result.ranks)
    if len(rows) != expected:
        yield f"{LEDGER_FILE} has {len(rows)} rows, the attribution {expected}"
    kinds = [f"attributed_{kind}_ns" for kind in Kind]
    parts = ["compute_ns", *kinds, "copies_exposed_ns", "bubble_ns", "host_other_ns"]
    for row in rows:
        try:
            where, window = f"rank {row['rank']} step {row['step']}", int(row["window_ns"])
            total = sum(int(row[part] or 0) for part in parts)
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError(f"{folder / LEDGER_FILE}: malformed ({error}); attribute the run again") from error
        if window != total:
            yield f"{LEDGER_FILE}, {where}: {total} ns of {window} ns"


def _intervals_table(folder: Path, result: Attribution) -> Iterable[str]:
    """intervals.csv parts the summary step of every rank without gap or overlap."""
    lengths: dict[str, int] = defaultdict(int)
    for row in read_table(folder / INTERVALS_FILE):
        try:
            lengths[row["rank"]] += int(row["end_ns"]) - int(row["start_ns"])
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError(f"{folder / INTERVALS_FILE}: malformed ({error}); attribute the run again") from error
    for rank in result.ranks:
        (window,) = [row.window_ns for row in rank.steps if row.step == result.summary_step]
        found = lengths.get("" if rank.rank is None else str(rank.rank), 0)
        if found != window:
            yield f"{INTERVALS_FILE}, rank {rank.rank}: {found} ns of {window} ns"
