"""What the launcher tells the ranks, and what each rank hands back. Torch-free; both sides decode it strictly."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from shardscope.errors import MeasurementError, cannot_write
from shardscope.measure.record import (
    CommunicationCall,
    Environment,
    Parity,
    Plan,
    RankMemory,
    WireCount,
)
from shardscope.measure.settings import MeasureSettings
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "Agreed",
    "Job",
    "Mode",
    "RankError",
    "RankExit",
    "RankExits",
    "RankPhase",
    "RankResult",
    "read_json",
    "write_json",
]

_T = TypeVar("_T", bound=msgspec.Struct)
Mode = Literal["alternate", "blocks", "alone", "reference"]

JOB_FILE = "job.json"
AGREED_FILE = "agreed.json"
EXITS_FILE = "exits.json"
LOG_PREFIX = "[shardscope]"  # of the lines that the measurement itself adds to the log


class _Message(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    pass


class Job(_Message, kw_only=True, frozen=True):
    """One launch. mode "reference" measures nothing: it writes `reference`."""

    spec: WorkloadSpec
    strategy: str
    parameters: dict[str, Any]
    baseline: str
    baseline_parameters: dict[str, Any]
    settings: MeasureSettings
    mode: Mode
    reference: str  # absolute path
    folder: str  # absolute path: where ranks write


class Agreed(_Message, kw_only=True, frozen=True):
    """What the agent found before starting ranks."""

    world_size: int
    threads_per_rank: int
    not_applicable: str | None
    baseline_not_applicable: str | None
    plan: Plan | None
    flops_per_step: int | None = None  # of an own model; None: not counted
    refused: str | None = None  # why no rank was started: the workload's own model cannot be used


class RankPhase(_Message, kw_only=True, frozen=True):
    """What a rank is doing; rewritten at every phase, so it survives the rank's death."""

    rank: int
    pid: int
    phase: str
    alive: tuple[str, ...]  # "candidate", "baseline": models that exist


class RankError(_Message, kw_only=True, frozen=True):
    """How a rank ended by itself with an exception."""

    rank: int
    time_ns: int
    phase: str
    alive: tuple[str, ...]
    out_of_memory: bool
    message: str
    traceback: tuple[str, ...]


class RankExit(_Message, kw_only=True, frozen=True):
    """How the operating system saw a failed rank end."""

    rank: int
    exit_code: int | None
    signal: str | None
    time_s: int


class RankExits(_Message, kw_only=True, frozen=True):
    """All failed ranks of a launch."""

    exits: tuple[RankExit, ...]


class RankResult(_Message, kw_only=True, frozen=True):
    """Everything one rank measured. Fields that only rank 0 fills are None or empty elsewhere."""

    rank: int
    world_size: int
    active: bool  # False: this rank holds nothing under this strategy and only waited
    mode: Mode
    losses: tuple[float, ...] = ()
    reference_losses: tuple[float, ...] = ()
    parity: Parity | None = None
    memory: RankMemory | None = None
    communication: tuple[CommunicationCall, ...] = ()
    profiled_steps: tuple[int, ...] = ()
    trace: str | None = None
    environment: Environment | None = None
    triples: tuple[tuple[int, int, int], ...] = ()
    candidate_ns: tuple[int, ...] = ()
    matmul_peak_flops_per_s: float | None = None
    latency_baseline_ns: tuple[int, ...] = ()
    latency_candidate_ns: tuple[int, ...] = ()
    all_cores_threads: int | None = None
    all_cores_ns: tuple[int, ...] = ()
    all_cores_baseline_ns: tuple[int, ...] = ()
    profiled_step_ns: int | None = None
    plain_step_ns: int | None = None
    memory_bytes_per_s: float | None = None
    wire: WireCount | None = None


def write_json(path: Path, message: msgspec.Struct) -> None:
    """Write `message` so that a reader sees either the whole of it or the state before. Raises MeasurementError."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(message), indent=1))
        part.replace(path)
    except OSError as error:
        raise MeasurementError(cannot_write(path, error)) from error


def read_json(path: Path, kind: type[_T]) -> _T:
    """Read what write_json wrote. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=kind)
