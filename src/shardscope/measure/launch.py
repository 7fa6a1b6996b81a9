"""Measure one strategy: start the ranks, watch them, turn what happens into a run record. Torch-free.

Every way to end is a record: measured, not applicable, out of memory, failed. A failed rerun keeps the earlier result.
"""

import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from shardscope.errors import MeasurementError, cannot_write
from shardscope.measure.collect import agreed_facts, collect
from shardscope.measure.folder import earlier_result, kept_files, publish, working_folder
from shardscope.measure.job import Job, Mode
from shardscope.measure.network import unavailable
from shardscope.measure.process import Ending, run_job, terminable
from shardscope.measure.record import SCHEMA_VERSION, Failure, RunRecord, StrategyRecord, failed_attempts
from shardscope.measure.reference import load_reference
from shardscope.measure.resolve import find_strategy, full_parameters
from shardscope.measure.settings import MeasureSettings
from shardscope.measure.verdict import Verdict, judge_ending
from shardscope.vocabulary import Status
from shardscope.workload.spec import WorkloadSpec

__all__ = ["make_reference", "run_strategy"]


def run_strategy(
    *,
    spec: WorkloadSpec,
    strategy: str,
    parameters: Mapping[str, Any],
    baseline: str,
    baseline_parameters: Mapping[str, Any],
    settings: MeasureSettings,
    reference: Path,
    output: Path,
    log: Path,
    failures: Literal["record", "stop"] = "record",
) -> RunRecord:
    """Measure `strategy` against `baseline` and write the folder `output` (run.json and one trace per rank).

    strategy, baseline: names of rows, or `module:attribute`. reference: what make_reference wrote for `spec`.
    failures "record": a failure becomes a record, or is noted in the earlier result of the same measurement, which
    stays usable; "stop": it raises MeasurementError and `output` stays as it was. Returns what `output` now holds.
    Raises ConfigError for unknown names and parameters, MeasurementError when nothing can be written.
    """
    job = Job(
        spec=spec,
        strategy=strategy,
        parameters=full_parameters(strategy, parameters),
        baseline=baseline,
        baseline_parameters=full_parameters(baseline, baseline_parameters),
        settings=settings,
        mode="alternate",
        reference=str(reference.resolve()),
        folder="",
    )
    load_reference(reference, spec, settings.loss_steps)
    row = find_strategy(strategy)
    with terminable(), working_folder(output) as work, _open_log(log) as stream:
        earlier = earlier_result(output)
        base = RunRecord(
            schema=SCHEMA_VERSION,
            status=Status.OK,
            reason=None,
            started_at=_now(),
            finished_at="",
            workload=spec,
            strategy=StrategyRecord(
                name=row.name, display_name=row.display_name, shards=tuple(row.shards), parameters=job.parameters
            ),
            baseline=find_strategy(baseline).name,
            failed_attempts=failed_attempts(output),
        )
        record, files = _measure(job, base, work, stream)
        record = msgspec.structs.replace(record, finished_at=_now())
        if record.failed_attempts > base.failed_attempts:
            if record.status is Status.FAILED and failures == "stop":
                raise MeasurementError(f"{row.name} on {spec.name}: {record.reason}; see {log}")
            record, files = _keep_earlier(record, earlier, output, settings.rate_mbit)
        publish(record, files, output, work)
    return record


def make_reference(*, spec: WorkloadSpec, settings: MeasureSettings, output: Path, log: Path) -> None:
    """Write `single`'s gradients at step 0 and losses to the file `output` (.npz). Raises MeasurementError."""
    job = Job(
        spec=spec,
        strategy="single",
        parameters=full_parameters("single", {}),
        baseline="single",
        baseline_parameters={},
        settings=settings,
        mode="reference",
        reference="",
        folder="",
    )
    with terminable(), working_folder(output) as work, _open_log(log) as stream:
        made = work / "reference.npz"
        here = msgspec.structs.replace(job, folder=str(work), reference=str(made))
        ending = run_job(here, stream, time.monotonic() + settings.timeout_s)
        if not ending.ok:
            reason = judge_ending(ending, settings.timeout_s).reason
            raise MeasurementError(f"the reference of workload {spec.name} failed: {reason}; see {log}")
        if not made.is_file():
            ended = "ended without a result" + (f", in {spec.model} or what it calls" if spec.model else "")
            raise MeasurementError(f"the reference of workload {spec.name} failed: its process {ended}; see {log}")
        load_reference(made, spec, settings.loss_steps)
        made.replace(output)


def _measure(job: Job, base: RunRecord, work: Path, log: BinaryIO) -> tuple[RunRecord, dict[str, Path]]:
    """Launch, again with less in memory where that was the trouble, until there is an answer."""
    rate = job.settings.rate_mbit
    obstacle = unavailable(rate) if rate is not None else None
    if obstacle is not None:
        # Counted like a failure, so that the next run looks again: a package may have been installed meanwhile.
        reason = f"a rate of {rate:g} Mbit/s cannot be emulated: {obstacle}"
        attempts = base.failed_attempts + 1
        return msgspec.structs.replace(base, status=Status.NOT_APPLICABLE, reason=reason, failed_attempts=attempts), {}
    deadline = time.monotonic() + job.settings.timeout_s
    mode: Mode = "alternate"
    while True:
        folder = work / mode
        folder.mkdir()
        here = msgspec.structs.replace(job, folder=str(folder), mode=mode)
        ending = run_job(here, log, deadline)
        if ending.ok:
            return _finished(here, base, folder, ending)
        verdict = judge_ending(ending, job.settings.timeout_s)
        fewer = _with_less_memory(mode, verdict)
        if fewer is None:
            break
        log.write(f"[shardscope] {verdict.reason}: again, {fewer}\n".encode())
        log.flush()
        shutil.rmtree(folder)
        mode = fewer
    agreed = agreed_facts(folder)
    shutil.rmtree(folder, ignore_errors=True)  # a disk that is full may have room for the record then
    record = msgspec.structs.replace(
        base,
        status=verdict.status,
        reason=verdict.reason,
        failure=verdict.failure,
        failed_attempts=base.failed_attempts + (verdict.status is Status.FAILED),
        plan=agreed.plan if agreed is not None else None,
    )
    return record, {}


def _with_less_memory(mode: Mode, verdict: Verdict) -> Mode | None:
    """The next thing to try when memory ran out with the baseline alive, None when there is none."""
    if verdict.status is not Status.OUT_OF_MEMORY or "baseline" not in verdict.alive:
        return None
    return "blocks" if "candidate" in verdict.alive else "alone"


def _finished(job: Job, base: RunRecord, folder: Path, ending: Ending) -> tuple[RunRecord, dict[str, Path]]:
    agreed = agreed_facts(folder)
    if agreed is not None and agreed.not_applicable is not None:
        return msgspec.structs.replace(base, status=Status.NOT_APPLICABLE, reason=agreed.not_applicable), {}
    try:
        record = collect(job, folder, base)
    except MeasurementError as error:
        failure = Failure(rank=None, exit_code=0, signal=None, log_tail=ending.log_tail)
        attempts = base.failed_attempts + 1
        return msgspec.structs.replace(
            base, status=Status.FAILED, reason=str(error), failure=failure, failed_attempts=attempts
        ), {}
    return record, {trace.file: folder / trace.file for trace in record.traces}


def _keep_earlier(
    record: RunRecord, earlier: RunRecord | None, output: Path, rate: float | None
) -> tuple[RunRecord, dict[str, Path]]:
    """The earlier result with the failure noted, if it measured the same thing; else the failure itself."""
    if earlier is None or earlier.status is not Status.OK:
        return record, {}
    files = kept_files(earlier, output)
    same = (earlier.workload, earlier.strategy.parameters) == (record.workload, record.strategy.parameters)
    at = earlier.environment.rate_mbit if earlier.environment is not None else None
    if not same or at != rate or not files:
        return record, {}
    kept = msgspec.structs.replace(
        earlier,
        failed_attempts=record.failed_attempts,
        last_failure=record.failure,
        last_failure_reason=record.reason,
    )
    return kept, files


def _open_log(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")
    except OSError as error:
        raise MeasurementError(cannot_write(path, error)) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
