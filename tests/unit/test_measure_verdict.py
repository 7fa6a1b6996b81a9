"""Who is to blame when a launch ends badly."""

from typing import Any

import pytest

from shardscope.measure.job import RankError, RankExit, RankPhase
from shardscope.measure.process import Ending
from shardscope.measure.verdict import judge_ending
from shardscope.vocabulary import Status


def ending(**changes: Any) -> Ending:
    phases = tuple(RankPhase(rank=r, pid=1, phase="timing", alive=("candidate", "baseline")) for r in range(2))
    usual: dict[str, Any] = {
        "ok": False, "timed_out": False, "agent_exit": 1, "exits": (), "errors": (), "phases": phases,
        "killed_for_memory": False, "full_disk": None, "log_tail": ("last line",),
    }  # fmt: skip
    return Ending(**{**usual, **changes})


def error(rank: int, time: int, message: str = "RuntimeError: connection closed", short: bool = False) -> RankError:
    return RankError(
        rank=rank, time_ns=time, phase="losses", alive=("candidate",), out_of_memory=short, message=message,
        traceback=(),
    )  # fmt: skip


def died(rank: int, signal: str | None, code: int | None = None, time: int = 5) -> RankExit:
    return RankExit(rank=rank, exit_code=code, signal=signal, time_s=time)


@pytest.mark.parametrize(
    ("case", "status", "rank", "signal", "words"),
    [
        pytest.param(
            # The survivor raises first, because its peer is gone; torchrun ends rank 2 afterwards.
            ending(errors=(error(0, 1),), exits=(died(0, None, 1, 3), died(1, "SIGKILL"), died(2, "SIGTERM", time=1))),
            Status.FAILED, 1, "SIGKILL", "rank 1 was killed by SIGKILL during timing", id="killed",
        ),
        pytest.param(
            ending(errors=(error(0, 9), error(1, 4, "ValueError: wrong\nshape")), exits=(died(0, None, 1),)),
            Status.FAILED, 1, None, "rank 1 failed during losses: ValueError: wrong shape", id="raised first",
        ),
        pytest.param(
            ending(timed_out=True, killed_for_memory=True, exits=(died(0, "SIGKILL"),)),
            Status.FAILED, None, None, "not finished after 7 s (rank 0 in timing, rank 1 in timing)", id="timeout",
        ),
        pytest.param(
            ending(errors=(error(0, 1), error(1, 2, "OutOfMemoryError: x", short=True))),
            Status.OUT_OF_MEMORY, 1, None, "rank 1 ran out of memory during losses", id="allocation error",
        ),
        pytest.param(
            ending(killed_for_memory=True, exits=(died(1, "SIGKILL"),), errors=(error(0, 1),)),
            Status.OUT_OF_MEMORY, 1, "SIGKILL", "rank 1 was killed by the kernel for lack of memory", id="oom killer",
        ),
        pytest.param(
            ending(killed_for_memory=True, exits=(died(1, "SIGSEGV"),)),
            Status.FAILED, 1, "SIGSEGV", "rank 1 was killed by SIGSEGV", id="another process ran out of memory",
        ),
        pytest.param(
            ending(exits=(died(1, None, 3),)), Status.FAILED, 1, None, "rank 1 ended with exit status 3", id="exit"
        ),
        pytest.param(
            ending(agent_exit=-9, phases=()), Status.FAILED, None, "SIGKILL", "launcher of the ranks", id="agent"
        ),
    ],
)  # fmt: skip
def test_verdict(case: Ending, status: Status, rank: int | None, signal: str | None, words: str) -> None:
    verdict = judge_ending(case, 7)
    assert verdict.status is status
    assert words in verdict.reason
    assert "\n" not in verdict.reason
    assert (verdict.failure.rank, verdict.failure.signal) == (rank, signal)
    assert verdict.failure.log_tail == ("last line",)
