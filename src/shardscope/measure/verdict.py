"""Why a launch ended as it did: whose fault, in one line. Torch-free."""

import signal
from dataclasses import dataclass

from shardscope.measure.process import Ending
from shardscope.measure.record import Failure
from shardscope.vocabulary import Status

__all__ = ["Verdict", "judge_ending"]


@dataclass(frozen=True)
class Verdict:
    """status FAILED or OUT_OF_MEMORY. alive: models ("candidate", "baseline") that existed where memory ran out."""

    status: Status
    reason: str
    failure: Failure
    alive: tuple[str, ...]


def judge_ending(ending: Ending, timeout_s: int) -> Verdict:
    """The verdict on a launch that did not end well.

    Out of memory: torch's allocation error, or a kill while the cgroup's oom_kill counter rose. Any other death is a
    failure of the rank that died first: killed ones before ones that raised, since a dead peer makes others raise, and
    not those that torchrun ended with SIGTERM afterwards.
    """
    phases = {phase.rank: phase for phase in ending.phases}
    short = next((error for error in ending.errors if error.out_of_memory), None)
    killed = sorted((e for e in ending.exits if e.signal not in (None, "SIGTERM")), key=lambda e: e.time_s)
    by_kernel = ending.killed_for_memory and not ending.timed_out
    if short is not None:
        return Verdict(
            Status.OUT_OF_MEMORY,
            f"rank {short.rank} ran out of memory during {short.phase}: {_line(short.message)}",
            _failure(ending, short.rank, None, None),
            short.alive,
        )
    if by_kernel and (any(e.signal == "SIGKILL" for e in killed) or ending.agent_exit == -signal.SIGKILL):
        rank = next((e.rank for e in killed if e.signal == "SIGKILL"), None)
        phase = phases.get(rank if rank is not None else 0)
        return Verdict(
            Status.OUT_OF_MEMORY,
            f"rank {'?' if rank is None else rank} was killed by the kernel for lack of memory"
            + (f" during {phase.phase}" if phase else ""),
            _failure(ending, rank, None, "SIGKILL"),
            phase.alive if phase else (),
        )
    return _failed(ending, timeout_s)


def _failed(ending: Ending, timeout_s: int) -> Verdict:
    phases = {phase.rank: phase.phase for phase in ending.phases}
    killed = sorted((e for e in ending.exits if e.signal not in (None, "SIGTERM")), key=lambda e: e.time_s)
    errors = sorted(ending.errors, key=lambda error: error.time_ns)
    rank, code, name = None, None, None
    if ending.timed_out:
        where = ", ".join(f"rank {rank} in {phase}" for rank, phase in sorted(phases.items())) or "no rank started"
        reason = f"not finished after {timeout_s} s ({where})"
    elif ending.refused is not None:
        reason = ending.refused
    elif killed:
        rank, name = killed[0].rank, killed[0].signal
        reason = f"rank {rank} was killed by {name} during {phases.get(rank, 'start')}"
    elif errors:
        rank = errors[0].rank
        code = next((e.exit_code for e in ending.exits if e.rank == rank), 1)
        reason = f"rank {rank} failed during {errors[0].phase}: {_line(errors[0].message)}"
    elif ending.exits:
        rank, code, name = ending.exits[0].rank, ending.exits[0].exit_code, ending.exits[0].signal
        reason = f"rank {rank} ended with {name or f'exit status {code}'} during {phases.get(rank, 'start')}"
    else:
        code = ending.agent_exit if ending.agent_exit >= 0 else None
        name = signal.Signals(-ending.agent_exit).name if ending.agent_exit < 0 else None
        reason = f"the launcher of the ranks ended with {name or f'exit status {code}'}"
    if ending.full_disk is not None and not errors:
        reason += f"; {ending.full_disk}"
    return Verdict(Status.FAILED, reason, _failure(ending, rank, code, name), ())


def _failure(ending: Ending, rank: int | None, code: int | None, name: str | None) -> Failure:
    return Failure(rank=rank, exit_code=code, signal=name, log_tail=ending.log_tail)


def _line(text: str) -> str:
    """One line of at most 300 characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else flat[:299] + "…"
