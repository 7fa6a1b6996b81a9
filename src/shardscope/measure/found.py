"""What one rank has measured so far, and what of it goes back to the launcher."""

import math
from dataclasses import dataclass, field

from shardscope.measure.job import RankResult
from shardscope.measure.record import NOT_FINITE, CommunicationCall, Parity, RankMemory
from shardscope.measure.session import Session
from shardscope.strategies.base import Trainer

__all__ = ["Found"]


@dataclass
class Found:
    """What has been measured so far."""

    active: bool
    candidate: Trainer | None = None
    matmul_peak: float | None = None
    losses: list[float] = field(default_factory=list)
    reference_losses: tuple[float, ...] = ()
    parity: Parity | None = None
    memory: RankMemory | None = None
    communication: tuple[CommunicationCall, ...] = ()
    profiled_steps: tuple[int, ...] = ()
    profiled_ns: tuple[int, ...] = ()
    trace: str | None = None
    triples: tuple[tuple[int, int, int], ...] = ()
    candidate_ns: tuple[int, ...] = ()
    latency_baseline: tuple[int, ...] = ()
    latency_candidate: tuple[int, ...] = ()
    all_cores_threads: int | None = None
    all_cores: tuple[int, ...] = ()
    all_cores_baseline: tuple[int, ...] = ()
    cost: tuple[int, int] | None = None

    def result(self, session: Session, mode: str) -> RankResult:
        """What this rank hands back: common numbers only from rank 0."""
        first = session.rank == 0
        return RankResult(
            rank=session.rank,
            world_size=session.world_size,
            active=self.active,
            mode=mode,  # type: ignore[arg-type]
            losses=tuple(finite(loss) for loss in self.losses),
            reference_losses=tuple(finite(loss) for loss in self.reference_losses) if first else (),
            parity=self.parity,
            memory=self.memory,
            communication=self.communication,
            profiled_steps=self.profiled_steps,
            trace=self.trace,
            environment=session.environment() if first else None,
            triples=self.triples if first else (),
            candidate_ns=self.candidate_ns if first else (),
            matmul_peak_flops_per_s=self.matmul_peak if first else None,
            latency_baseline_ns=self.latency_baseline if first else (),
            latency_candidate_ns=self.latency_candidate if first else (),
            all_cores_threads=self.all_cores_threads if first else None,
            all_cores_ns=self.all_cores if first else (),
            all_cores_baseline_ns=self.all_cores_baseline if first else (),
            profiled_step_ns=self.cost[0] if first and self.cost else None,
            plain_step_ns=self.cost[1] if first and self.cost else None,
            memory_bytes_per_s=session.memory_bytes_per_s,
            wire=session.wire,
        )


def finite(value: float) -> float:
    """`value`, or NOT_FINITE where it is infinite or no number."""
    return value if math.isfinite(value) else NOT_FINITE
