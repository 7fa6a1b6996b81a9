"""run.json: everything one strategy's measurement says about itself. Torch-free, so later stages can read it anywhere.

A folder `traces/<workload>/<strategy>/` is a result only if it holds a run.json; it is written last. Times are integer
nanoseconds, sizes are bytes. Fields that could not be measured are None, never zero.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec

from shardscope.records import load_record
from shardscope.vocabulary import Axis, Kind, Status
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "NOT_FINITE",
    "AllCores",
    "CommunicationCall",
    "Environment",
    "ExpectedCollective",
    "Failure",
    "Latency",
    "Parity",
    "Plan",
    "ProfilerCost",
    "RankMemory",
    "RankState",
    "RateCheck",
    "RunRecord",
    "StrategyRecord",
    "Timing",
    "TraceFile",
    "WireCount",
    "failed_attempts",
    "load_run",
]

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
NOT_FINITE = sys.float_info.max  # stands for losses and errors that are infinite or no number: JSON has neither


class _Record(msgspec.Struct, kw_only=True, frozen=True):
    pass


class StrategyRecord(_Record, kw_only=True, frozen=True):
    """Which strategy ran, under which parameters (bucket cap, reshard_after_forward, …)."""

    name: str
    display_name: str
    shards: tuple[str, ...]  # what each rank holds a part of: "batch", "gradients", "optimizer_state", "parameters", …
    parameters: dict[str, Any]


class ExpectedCollective(_Record, kw_only=True, frozen=True):
    """One line of the plan: `count` calls per training step in which every rank of `group` takes part.

    `bytes` is the sum over the calls of S: the buffer for all-reduce and broadcast, the whole array for all-gather and
    reduce-scatter, one rank's whole send buffer for all-to-all, the message for send_receive (group = (source,
    destination); each of the two sees one event per message).
    """

    kind: Kind
    axis: Axis
    group: tuple[int, ...]
    count: int
    bytes: int
    what: str


class RankState(_Record, kw_only=True, frozen=True):
    """Bytes the plan gives one rank at the end of a step."""

    rank: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int


class Plan(_Record, kw_only=True, frozen=True):
    """What the strategy must hold and communicate, computed before the run from shapes alone."""

    parameter_count: int
    state: tuple[RankState, ...]
    collectives: tuple[ExpectedCollective, ...]
    stages: tuple[tuple[int, ...], ...] = ()  # pipeline: ranks in stage order, one tuple per pipeline
    bubble_fraction: float | None = None  # closed form for pipelines
    activation_bytes: tuple[int, ...] = ()  # per rank, in flight at the peak: a formula, not state (workload.shapes)


class CommunicationCall(_Record, kw_only=True, frozen=True):
    """One c10d call of a profiled step on one rank, in issue order (the sidecar of the trace)."""

    step: int  # number in ProfilerStep#N
    kind: Kind
    axis: Axis
    group: tuple[int, ...]  # global ranks
    bytes: int  # S as in ExpectedCollective
    op: str  # e.g. "c10d::allreduce_"
    source: int | None = None  # send_receive only: global ranks
    destination: int | None = None
    tag: int | None = None
    backward: bool | None = None  # issued from inside autograd's backward


class RateCheck(_Record, kw_only=True, frozen=True):
    """One all-reduce at an emulated rate: bytes it put on the loopback (all ranks, with headers), and its time."""

    payload_bytes: int
    loopback_bytes: int
    took_ns: int


class Environment(_Record, kw_only=True, frozen=True):
    """Facts about the machine and software that the numbers depend on."""

    host: str
    cpu: str
    physical_cores: int
    usable_cores: int  # within affinity and the cgroup's quota
    world_size: int
    threads_per_rank: int
    device: str  # "cpu", "cuda"
    device_names: tuple[str, ...]
    backend: str  # "gloo", "nccl"
    memory_bytes: int
    versions: dict[str, str]  # python, torch, …
    oversubscribed: bool  # more ranks than cores: times are no evidence
    rate_mbit: float | None = None  # emulated: what all ranks together can send, 10⁶ bit/s; None: the machine's own
    rate_check: RateCheck | None = None


class Timing(_Record, kw_only=True, frozen=True):
    """Step times. `triples[i]` = (baseline, candidate, baseline again), each the slowest rank's step in ns.

    mode: "alternate" (single steps A B A′), "blocks" (A…A B…B A′…A′ blocks, element-wise), "alone" (the baseline did
    not fit: only the candidate, `triples` empty, `candidate_ns` filled).
    """

    mode: str
    baseline: str | None
    triples: tuple[tuple[int, int, int], ...]
    candidate_ns: tuple[int, ...]
    tokens_per_step: int
    flops_per_step: int | None  # model FLOPs (workload.shapes); None: an own model's that could not be counted
    matmul_peak_flops_per_s: float | None  # measured here, all ranks together
    memory_bytes_per_s: float | None = None  # of a copy, read and written bytes, all ranks together


class Latency(_Record, kw_only=True, frozen=True):
    """One sample, forward only, no gradient, input to output."""

    baseline_ns: tuple[int, ...]  # empty when the baseline did not fit
    candidate_ns: tuple[int, ...]


class AllCores(_Record, kw_only=True, frozen=True):
    """`single` only: one process that uses all cores (or one device) the ranks share."""

    threads: int
    step_ns: tuple[int, ...]
    baseline_ns: tuple[int, ...]  # paired, same order
    peak_bytes: int | None


class RankMemory(_Record, kw_only=True, frozen=True):
    """Memory of one rank in its own phase, one model alive. Categories are at the peak instant and add up to it."""

    rank: int
    parameter_bytes: int  # measured state at the end of a step
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes_at_peak: int  # activations and temporaries: peak − state held at the step's start
    peak_bytes: int
    residue_bytes: int  # error of the peak: live set left unexplained at the step's end
    rss_peak_bytes: int | None


class Parity(_Record, kw_only=True, frozen=True):
    """Agreement with `single`. Errors are relative, as defined in measure.parity; NOT_FINITE if infinite."""

    tolerance: float
    gradient_error: float
    worst_parameter: str
    loss_error: float
    loss_steps: int
    passed: bool


class ProfilerCost(_Record, kw_only=True, frozen=True):
    """Median step with the profiler on and off."""

    profiled_step_ns: int
    plain_step_ns: int


class WireCount(_Record, kw_only=True, frozen=True):
    """Bytes on the loopback, with headers, over some steps without the profiler and over an idle stretch before."""

    steps: int
    loopback_bytes: int
    took_ns: int
    idle_bytes: int
    idle_ns: int


class TraceFile(_Record, kw_only=True, frozen=True):
    """A trace of one rank, beside run.json."""

    rank: int
    file: str
    bytes: int


class Failure(_Record, kw_only=True, frozen=True):
    """How a run died."""

    rank: int | None
    exit_code: int | None
    signal: str | None
    log_tail: tuple[str, ...]


class RunRecord(_Record, kw_only=True, frozen=True):
    """The whole of run.json."""

    schema: int
    status: Status
    reason: str | None  # for every status but ok
    started_at: str  # ISO 8601, UTC
    finished_at: str
    workload: WorkloadSpec
    strategy: StrategyRecord
    baseline: str
    failed_attempts: int = 0  # carried forward; a change of it makes the workflow retry a failed run
    failure: Failure | None = None
    last_failure: Failure | None = None  # a later rerun failed and this earlier result was kept
    last_failure_reason: str | None = None
    plan: Plan | None = None
    environment: Environment | None = None
    timing: Timing | None = None
    latency: Latency | None = None
    all_cores: AllCores | None = None
    memory: tuple[RankMemory, ...] = ()
    losses: tuple[float, ...] = ()  # NOT_FINITE where training diverged
    reference_losses: tuple[float, ...] = ()
    parity: Parity | None = None
    profiler: ProfilerCost | None = None
    traces: tuple[TraceFile, ...] = ()
    profiled_steps: tuple[int, ...] = ()  # numbers in ProfilerStep#N
    communication: dict[str, tuple[CommunicationCall, ...]] = {}  # sidecar: rank → calls
    wire: WireCount | None = None
    notes: tuple[str, ...] = ()


def load_run(folder: Path) -> RunRecord:
    """Read `folder`/run.json.

    Raises ResultError when the folder is no finished result or was written by another schema.
    """
    return load_record(
        folder / RUN_FILE,
        RunRecord,
        schema=SCHEMA_VERSION,
        called="a run record",
        remedy="measure it again",
        absent=f"{folder}: not a finished run, {RUN_FILE} is missing",
    )


class _Attempts(msgspec.Struct):
    failed_attempts: int = 0


def failed_attempts(folder: str | Path) -> int:
    """How often the measurement in `folder` has failed so far; 0 without a readable record. Cheap: skips the rest."""
    try:
        return msgspec.json.decode((Path(folder) / RUN_FILE).read_bytes(), type=_Attempts).failed_attempts
    except (OSError, msgspec.MsgspecError, ValueError):
        return 0
