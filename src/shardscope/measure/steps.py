"""What a rank measures, phase by phase.

alternate: the candidate alone (losses and gradients, memory, profile), then both (timing in turn, request latency).
blocks: both do not fit together: baseline, candidate, baseline, one after another. alone: the baseline does not fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from shardscope.measure.found import Found
from shardscope.measure.job import RankResult
from shardscope.measure.latency import request_latencies
from shardscope.measure.memory import measure_memory
from shardscope.measure.parity import Gradient, gradient_errors, judge
from shardscope.measure.peak import matmul_flops_per_s
from shardscope.measure.profiling import profile_steps
from shardscope.measure.reference import Reference, load_reference, save_reference
from shardscope.measure.session import Session
from shardscope.measure.sidecar import Sidecar
from shardscope.measure.timing import train_step
from shardscope.strategies.base import Trainer

__all__ = ["make_reference", "measure"]

_LOG_LINES = 5  # of the rounds of a phase


def measure(session: Session) -> RankResult:
    """Everything about the candidate, by the job's mode."""
    job, agreed = session.job, session.agreed
    mode = "alone" if agreed.baseline_not_applicable is not None else job.mode
    assert agreed.plan is not None
    state = next(state for state in agreed.plan.state if state.rank == session.rank)
    found = Found(active=state.parameter_bytes > 0)
    found.matmul_peak = _matmul_peak(session)
    first = _baseline_block(session) if mode == "blocks" else None
    _candidate_alone(session, found)
    candidate, found.candidate = found.candidate, None
    assert candidate is not None
    if mode == "alternate":
        _alternate(session, found, candidate)
    else:
        _block(session, found, candidate)
    _profiler_cost(session, found)
    session.release("candidate", candidate)
    if first is not None:
        del candidate
        last = _baseline_block(session)
        found.triples = tuple(zip(first.steps, found.candidate_ns, last.steps, strict=True))
        found.latency_baseline = first.requests + last.requests
    session.tell("finishing")
    return found.result(session, mode)


def _candidate_alone(session: Session, found: Found) -> None:
    settings = session.job.settings
    session.enter("losses")
    session.tell("building")
    found.candidate = candidate = session.build("candidate")
    _train_and_compare(session, found, candidate)
    step = partial(train_step, candidate, session.timed_batches[0])
    session.enter("memory")
    session.tell("memory")
    memory = measure_memory(session.rank, session.device, step, candidate.state)
    found.memory = memory if found.active else None
    session.log(f"peak {memory.peak_bytes / 1e6:.1f} MB on rank 0, error {memory.residue_bytes / 1e6:.2f} MB")
    session.enter("profile")
    session.tell("profile")
    name = f"rank{session.rank}.json.gz"
    sidecar = Sidecar(candidate.axes())
    session.device.start_phase()
    session.clock.barrier()
    profiled = profile_steps(
        session.device, step, settings.profiled_steps, sidecar, session.folder / name if found.active else None
    )
    found.trace = name if found.active else None
    found.communication = tuple(sidecar.calls)
    found.profiled_steps = profiled.steps
    found.profiled_ns = session.clock.slowest(profiled.times_ns)
    session.log(f"{settings.profiled_steps} steps, {len(sidecar.calls)} c10d calls on rank 0")
    session.count_wire(step)


def _train_and_compare(session: Session, found: Found, trainer: Trainer) -> None:
    """K steps from the start: losses of all, gradients of the first, compared with `single`'s."""
    settings = session.job.settings
    first = session.rank == 0
    reference = load_reference(Path(session.job.reference), session.job.spec, settings.loss_steps) if first else None
    errors: dict[str, float] = {}
    session.tell("parity")
    for step in range(settings.loss_steps):
        found.losses.append(trainer.forward_backward(*session.batch(step)))
        if step == 0:
            arrays = ((name, _array(gradient)) for name, gradient in trainer.gradients())
            if reference is not None:
                errors = gradient_errors(arrays, reference.gradients)
            else:
                for _ in arrays:  # gathering a sharded gradient takes all ranks
                    pass
        trainer.optimizer_step()
        session.tell("parity", step + 1)
    if reference is not None:
        found.reference_losses = reference.losses
        found.parity = judge(errors, found.losses, reference.losses, session.job.spec.dtype)
        session.log(
            f"{settings.loss_steps} steps, gradient error {found.parity.gradient_error:.1e} "
            f"({found.parity.worst_parameter}), loss error {found.parity.loss_error:.1e}"
        )


def _array(gradient: torch.Tensor | None) -> Gradient | None:
    if gradient is None:
        return None
    array: Gradient = np.asarray(gradient.detach().to(device="cpu", dtype=torch.float32).numpy())
    return array


def _alternate(session: Session, found: Found, candidate: Trainer) -> None:
    settings = session.job.settings
    session.enter("timing")
    session.tell("building baseline")
    baseline = session.build("baseline")
    steps = [_stepper(session, trainer) for trainer in (baseline, candidate, baseline)]
    if session.job.strategy == "single":
        steps.append(_with_all_cores(session, _stepper(session, candidate)))
    first = settings.warmup_steps - 1
    session.clock.rounds(steps[:1], first, _warming(session))
    session.clock.rounds(steps, 1, lambda _: session.tell("warm-up", first + len(steps)))
    rounds = session.clock.rounds(steps, settings.triples, _reporter(session, "timing", settings.triples))
    found.triples = tuple((times[0], times[1], times[2]) for times in rounds)
    found.candidate_ns = tuple(times[1] for times in rounds)
    if session.job.strategy == "single":
        found.all_cores_threads = session.machine.cores_for_ranks
        found.all_cores = tuple(times[3] for times in rounds)
        found.all_cores_baseline = tuple(times[2] for times in rounds)
    session.enter("latency")
    sample = session.timed_batches[0][0][:1]
    found.latency_baseline, found.latency_candidate = request_latencies(
        session.clock,
        [baseline, candidate],
        sample,
        settings.requests,
        _reporter(session, "request latency", settings.requests, 1),
    )
    session.release("baseline", baseline)


def _block(session: Session, found: Found, candidate: Trainer) -> None:
    """The candidate's own block of steps and requests, with no other model alive."""
    settings = session.job.settings
    session.enter("timing")
    timed = _time_block(session, candidate)
    found.candidate_ns, found.latency_candidate = timed.steps, timed.requests
    if session.job.strategy == "single":
        step = _with_all_cores(session, _stepper(session, candidate))
        found.all_cores_threads = session.machine.cores_for_ranks
        report = _reporter(session, "timing with all cores", settings.triples, 1)
        found.all_cores = tuple(times[0] for times in session.clock.rounds([step], settings.triples, report))


@dataclass(frozen=True)
class _Block:
    steps: tuple[int, ...]
    requests: tuple[int, ...]


def _baseline_block(session: Session) -> _Block:
    session.enter("baseline alone")
    session.tell("building baseline")
    baseline = session.build("baseline")
    block = _time_block(session, baseline)
    session.release("baseline", baseline)
    return block


def _time_block(session: Session, trainer: Trainer) -> _Block:
    settings = session.job.settings
    step = _stepper(session, trainer)
    session.clock.rounds([step], settings.warmup_steps, _warming(session))
    rounds = session.clock.rounds([step], settings.triples, _reporter(session, "timing", settings.triples))
    sample = session.timed_batches[0][0][:1]
    report = _reporter(session, "request latency", settings.requests, 0)
    (requests,) = request_latencies(session.clock, [trainer], sample, settings.requests, report)
    return _Block(steps=tuple(times[0] for times in rounds), requests=requests)


def _stepper(session: Session, trainer: Trainer) -> Callable[[], None]:
    """A function that trains one step, going round the prepared batches."""
    count = 0

    def step() -> None:
        nonlocal count
        train_step(trainer, session.timed_batches[count % len(session.timed_batches)])
        count += 1

    return step


def _with_all_cores(session: Session, step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        torch.set_num_threads(session.machine.cores_for_ranks)
        try:
            step()
        finally:
            torch.set_num_threads(session.agreed.threads_per_rank)

    return run


def _warming(session: Session) -> Callable[[int], None]:
    session.tell("warm-up")
    return partial(session.tell, "warm-up")


def _reporter(session: Session, phase: str, total: int, lines: int = _LOG_LINES) -> Callable[[int], None]:
    """Tells how far a phase is after each round; at most `lines` of that go to the log."""
    session.tell(phase)

    def report(done: int) -> None:
        session.tell(phase, done)
        if lines and (done == total or done % -(-total // lines) == 0):
            session.log(f"{done} of {total}")

    return report


def _profiler_cost(session: Session, found: Found) -> None:
    found.cost = (round(statistics.median(found.profiled_ns)), round(statistics.median(found.candidate_ns)))


def _matmul_peak(session: Session) -> float:
    session.enter("matmul peak")
    session.tell("matmul peak")
    session.clock.barrier()
    rate = torch.tensor(matmul_flops_per_s(session.device, session.job.spec.dtype), dtype=torch.float64)
    dist.all_reduce(rate, group=session.control)
    session.log(f"{float(rate) / 1e9:.1f} GFLOP/s")
    return float(rate)


def make_reference(session: Session) -> None:
    """`single`'s gradients at step 0 and losses, to the job's reference file."""
    session.enter("reference")
    session.tell("building")
    trainer = session.build("candidate")
    gradients: dict[str, Gradient] = {}
    losses: list[float] = []
    session.tell("training")
    for step in range(session.job.settings.loss_steps):
        losses.append(trainer.forward_backward(*session.batch(step)))
        if step == 0:
            for name, gradient in trainer.gradients():
                array = _array(gradient)
                assert array is not None
                gradients[name] = array.copy()
        trainer.optimizer_step()
        session.tell("training", len(losses))
    save_reference(
        Path(session.job.reference), Reference(spec=session.job.spec, gradients=gradients, losses=tuple(losses))
    )
    session.log(f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
