"""Put the ranks' results together, trusting none of them. Torch-free."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from shardscope.errors import MeasurementError
from shardscope.measure.job import AGREED_FILE, Agreed, Job, RankResult, read_json
from shardscope.measure.record import (
    AllCores,
    Latency,
    ProfilerCost,
    RankMemory,
    RunRecord,
    Timing,
    TraceFile,
)
from shardscope.measure.resolve import find_strategy
from shardscope.workload.shapes import flops_per_step

__all__ = ["agreed_facts", "collect"]

_GZIP_MAGIC = b"\x1f\x8b"


def agreed_facts(folder: Path) -> Agreed | None:
    """What the agent wrote, None if it died before."""
    try:
        return read_json(folder / AGREED_FILE, Agreed)
    except (OSError, msgspec.MsgspecError):
        return None


def collect(job: Job, folder: Path, base: RunRecord) -> RunRecord:
    """`base` with everything that the ranks measured. Raises MeasurementError naming what is wrong, and whose it is."""
    agreed = agreed_facts(folder)
    if agreed is None or agreed.plan is None:
        raise MeasurementError(f"{job.strategy}: the launch finished without its facts; see the log")
    results = [_result(folder, rank, agreed.world_size) for rank in range(agreed.world_size)]
    _check_ranks(job, results)
    first = results[0]
    _check_times(job, first)
    return msgspec.structs.replace(
        base,
        plan=agreed.plan,
        environment=first.environment,
        timing=_timing(job, agreed, first),
        latency=Latency(baseline_ns=first.latency_baseline_ns, candidate_ns=first.latency_candidate_ns),
        all_cores=_all_cores(first, results),
        memory=tuple(result.memory for result in results if result.memory is not None),
        losses=first.losses,
        reference_losses=first.reference_losses,
        parity=first.parity,
        profiler=ProfilerCost(profiled_step_ns=first.profiled_step_ns or 0, plain_step_ns=first.plain_step_ns or 0),
        traces=tuple(_trace(folder, result) for result in results if result.trace is not None),
        profiled_steps=first.profiled_steps,
        communication={str(result.rank): result.communication for result in results if result.active},
        notes=(*_notes(agreed, first, results), *_remedy(job, first)),
        wire=first.wire,
    )


def _result(folder: Path, rank: int, world_size: int) -> RankResult:
    path = folder / f"rank{rank}.result.json"
    try:
        result = read_json(path, RankResult)
    except OSError as error:
        raise MeasurementError(f"rank {rank} left no result ({error.strerror}); see the log") from error
    except msgspec.MsgspecError as error:
        raise MeasurementError(f"rank {rank} left a result that cannot be read ({error}); see the log") from error
    if (result.rank, result.world_size) != (rank, world_size):
        raise MeasurementError(f"{path.name} says it is of rank {result.rank} of {result.world_size}; see the log")
    return result


def _check_ranks(job: Job, results: Sequence[RankResult]) -> None:
    """Ranks that took part agree on losses and steps; each left what it had to."""
    first = results[0]
    steps = job.settings.loss_steps
    if len(first.losses) != steps or len(first.reference_losses) != steps or first.parity is None:
        raise MeasurementError(f"rank 0 returned {len(first.losses)} losses and no complete comparison, not {steps}")
    if first.environment is None or not any(result.active for result in results):
        raise MeasurementError("rank 0 returned no facts about the environment")
    for result in results:
        if result.losses != first.losses:
            raise MeasurementError(f"ranks 0 and {result.rank} report different losses of the same steps")
        if result.profiled_steps != first.profiled_steps or len(result.profiled_steps) != job.settings.profiled_steps:
            raise MeasurementError(f"rank {result.rank} profiled steps {list(result.profiled_steps)}")
        if not result.active:
            continue
        if result.memory is None or result.trace is None:
            raise MeasurementError(f"rank {result.rank} returned no memory figures or no trace")
        _check_memory(result.rank, result.memory)
        outside = {call.step for call in result.communication} - set(result.profiled_steps)
        ranks = {rank for call in result.communication for rank in call.group}
        if outside or not ranks <= set(range(result.world_size)):
            raise MeasurementError(f"rank {result.rank} noted communication outside its steps or of unknown ranks")


def _check_memory(rank: int, memory: RankMemory) -> None:
    parts = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes + memory.other_bytes_at_peak
    sizes = (memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes, memory.residue_bytes)
    if memory.rank != rank or parts != memory.peak_bytes or min(sizes) < 0 or memory.parameter_bytes == 0:
        raise MeasurementError(f"rank {rank} returned memory figures that do not add up")


def _check_times(job: Job, first: RankResult) -> None:
    paired = [time for triple in first.triples for time in triple]
    times = [*paired, *first.candidate_ns, *first.latency_candidate_ns, *first.latency_baseline_ns, *first.all_cores_ns]
    wanted = 0 if first.mode == "alone" else job.settings.triples
    if len(first.triples) != wanted or len(first.candidate_ns) != job.settings.triples:
        raise MeasurementError(
            f"rank 0 returned {len(first.triples)} triples and {len(first.candidate_ns)} steps, not {wanted} and "
            f"{job.settings.triples}"
        )
    if len(first.latency_candidate_ns) != job.settings.requests:
        raise MeasurementError(f"rank 0 returned {len(first.latency_candidate_ns)} request latencies")
    if any(time <= 0 for time in times) or not first.profiled_step_ns or not first.plain_step_ns:
        raise MeasurementError("rank 0 returned times that are not positive")
    peak = first.matmul_peak_flops_per_s
    if peak is None or not math.isfinite(peak) or peak <= 0:
        raise MeasurementError(f"rank 0 returned a matmul peak of {peak}")


def _timing(job: Job, agreed: Agreed, first: RankResult) -> Timing:
    return Timing(
        mode=first.mode,
        baseline=None if first.mode == "alone" else job.baseline,
        triples=first.triples,
        candidate_ns=first.candidate_ns,
        tokens_per_step=job.spec.tokens_per_step,
        # Nothing of an own model is imported here: the agent has counted.
        flops_per_step=flops_per_step(job.spec) if job.spec.model is None else agreed.flops_per_step,
        matmul_peak_flops_per_s=first.matmul_peak_flops_per_s,
        memory_bytes_per_s=first.memory_bytes_per_s,
    )


def _all_cores(first: RankResult, results: Sequence[RankResult]) -> AllCores | None:
    if first.all_cores_threads is None:
        return None
    return AllCores(
        threads=first.all_cores_threads,
        step_ns=first.all_cores_ns,
        baseline_ns=first.all_cores_baseline_ns,
        peak_bytes=max(result.memory.peak_bytes for result in results if result.memory is not None),
    )


def _trace(folder: Path, result: RankResult) -> TraceFile:
    assert result.trace is not None
    path = folder / Path(result.trace).name
    try:
        with path.open("rb") as stream:
            magic = stream.read(2)
        size = path.stat().st_size
    except OSError as error:
        raise MeasurementError(f"rank {result.rank} left no trace ({error.strerror}); see the log") from error
    if magic != _GZIP_MAGIC:
        raise MeasurementError(f"rank {result.rank} left a trace that is not gzip; see the log")
    return TraceFile(rank=result.rank, file=path.name, bytes=size)


def _notes(agreed: Agreed, first: RankResult, results: Sequence[RankResult]) -> tuple[str, ...]:
    notes: list[str] = []
    idle = [str(result.rank) for result in results if not result.active]
    if agreed.baseline_not_applicable is not None:
        notes.append(f"the baseline does not apply: {agreed.baseline_not_applicable}; the candidate was timed alone")
    elif first.mode == "alone":
        notes.append("the baseline does not fit in memory; the candidate was timed alone")
    elif first.mode == "blocks":
        notes.append("baseline and candidate do not fit in memory together; they were timed in alternating blocks")
    if idle:
        notes.append(f"ranks that hold nothing under this strategy and only wait: {', '.join(idle)}")
    if first.environment is not None and first.environment.oversubscribed:
        notes.append("more ranks than cores: times are no evidence; memory, bytes and parity are")
    return tuple(notes)


def _remedy(job: Job, first: RankResult) -> Iterator[str]:
    """What a strategy known to compute something else on some versions of torch names as the safe way to the same."""
    remedy = getattr(find_strategy(job.strategy), "remedy", None)
    if remedy is not None and first.parity is not None and not first.parity.passed:
        yield f"its gradients are not those of one process; {remedy}"
