"""Finished runs as files, made up with known truth: what selection and report are tested on."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shardscope.attribution.result import (
    Attribution,
    Calls,
    Clock,
    PipelineBubble,
    RankResult,
    StepRow,
)
from shardscope.measure.record import (
    AllCores,
    Environment,
    ExpectedCollective,
    Failure,
    Latency,
    Parity,
    Plan,
    ProfilerCost,
    RankMemory,
    RankState,
    RunRecord,
    StrategyRecord,
    Timing,
    TraceFile,
)
from shardscope.strategies import names, resolve_parameters
from shardscope.vocabulary import Axis, Evidence, Kind, Status
from shardscope.workload.spec import WorkloadSpec

MS = 1_000_000
MB = 1_000_000
SPEC = WorkloadSpec(name="gpt3m", layers=4, hidden=256, heads=4, sequence_length=64, global_batch=16, micro_batches=4)
ENVIRONMENT = Environment(
    host="node1",
    cpu="Test CPU 2.0 GHz",
    physical_cores=2,
    usable_cores=2,
    world_size=2,
    threads_per_rank=1,
    device="cpu",
    device_names=(),
    backend="gloo",
    memory_bytes=8_000 * MB,
    versions={"python": "3.11.9", "torch": "2.13.0"},
    oversubscribed=False,
)


@dataclass
class Fake:
    """One strategy. Times in ms, sizes in MB. `parts`: kind → (axis, transfer, waiting, hidden) of the summary step."""

    name: str
    display: str = ""
    shards: tuple[str, ...] = ("batch",)
    step: float = 100.0
    base: float = 100.0
    noise: float = 0.01
    peak: float = 60.0
    residue: float = 0.2
    request: float = 5.0
    base_request: float = 5.0
    compute: float = 80.0
    parts: dict[Kind, tuple[Axis, float, float, float]] = field(default_factory=dict)
    bubble: float | None = None
    status: Status = Status.OK
    reason: str | None = None
    gradient_error: float = 1e-6
    loss_error: float = 1e-7
    losses: tuple[float, ...] = tuple(5.5 - 0.1 * i for i in range(16))
    all_cores: float | None = None
    failure: Failure | None = None
    last_failure_reason: str | None = None
    mode: str = "alternate"
    baseline: str = "ddp"
    triples: int = 25
    environment: Environment = ENVIRONMENT
    spec: WorkloadSpec = SPEC
    extra_calls: int = 0
    flags: tuple[str, ...] = ()
    clock_residual_ns: int = 2000
    flops: int = 20_000_000_000
    plan_bytes: int = 4 * MB  # of each kind

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that hold state."""
        return (0,) if self.name == "single" else tuple(range(self.environment.world_size))


def write(root: Path, fakes: list[Fake], seed: int = 1) -> dict[str, tuple[Path, Path]]:
    """Write run and attribution folders; returns what `decide` takes."""
    folders = {}
    for fake in fakes:
        workload = fake.spec.name
        run, attribution = root / "traces" / workload / fake.name, root / "data" / workload / fake.name
        run.mkdir(parents=True, exist_ok=True)
        attribution.mkdir(parents=True, exist_ok=True)
        record = record_of(fake, random.Random(f"{seed}{fake.name}"))
        for trace in record.traces:
            (run / trace.file).write_bytes(b"x" * trace.bytes)
        (run / "run.json").write_bytes(msgspec.json.encode(record))
        if fake.status is Status.OK:
            result = attribution_of(fake)
            (attribution / "attribution.json").write_bytes(msgspec.json.encode(result))
            (attribution / "ledger.csv").write_text(ledger_csv(result))
            (attribution / "intervals.csv").write_text(intervals_csv(result))
        folders[fake.name] = (run, attribution)
    return folders


def record_of(fake: Fake, rng: random.Random) -> RunRecord:
    """The run record of `fake`."""

    def jitter(ms: float) -> int:
        return int(ms * MS * rng.lognormvariate(0, fake.noise))

    base = RunRecord(
        schema=1,
        status=fake.status,
        reason=fake.reason,
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:05:05+00:00",
        workload=fake.spec,
        strategy=StrategyRecord(
            name=fake.name,
            display_name=fake.display or fake.name,
            shards=fake.shards,
            parameters=resolve_parameters(fake.name, {}) if fake.name in names() else {},
        ),
        baseline=fake.baseline,
        failure=fake.failure,
    )
    if fake.status is not Status.OK:
        return base
    paired = fake.mode != "alone"
    triples = tuple((jitter(fake.base), jitter(fake.step), jitter(fake.base)) for _ in range(fake.triples))
    own = tuple(b for _, b, _ in triples) if paired else tuple(jitter(fake.step) for _ in range(fake.triples))
    state = int(fake.peak * MB) // 2
    return msgspec.structs.replace(
        base,
        plan=plan_of(fake, state),
        environment=fake.environment,
        timing=Timing(
            mode=fake.mode,
            baseline=fake.baseline if paired else None,
            triples=triples if paired else (),
            candidate_ns=own,
            tokens_per_step=fake.spec.tokens_per_step,
            flops_per_step=fake.flops,
            matmul_peak_flops_per_s=5e11,
        ),
        latency=Latency(
            baseline_ns=tuple(jitter(fake.base_request) for _ in range(30)) if paired else (),
            candidate_ns=tuple(jitter(fake.request) for _ in range(30)),
        ),
        all_cores=None
        if fake.all_cores is None
        else AllCores(
            threads=2,
            step_ns=tuple(jitter(fake.all_cores) for _ in range(fake.triples)),
            baseline_ns=tuple(a for _, _, a in triples),
            peak_bytes=int(fake.peak * MB),
        ),
        memory=tuple(
            RankMemory(
                rank=rank,
                parameter_bytes=state // 4,
                gradient_bytes=state // 4,
                optimizer_bytes=state // 2,
                other_bytes_at_peak=int(fake.peak * MB) - state // 4 * 2 - state // 2,
                peak_bytes=int(fake.peak * MB),
                residue_bytes=int(fake.residue * MB),
                rss_peak_bytes=int(fake.peak * MB) + 200 * MB,
            )
            for rank in fake.ranks
        ),
        losses=fake.losses,
        reference_losses=fake.losses,
        parity=Parity(
            tolerance=1e-5,
            gradient_error=fake.gradient_error,
            worst_parameter="blocks.0.attention.key.bias",
            loss_error=fake.loss_error,
            loss_steps=16,
            passed=fake.gradient_error <= 1e-5 and fake.loss_error <= 1e-5,
        ),
        profiler=ProfilerCost(profiled_step_ns=int(1.2 * fake.step * MS), plain_step_ns=int(fake.step * MS)),
        traces=tuple(TraceFile(rank=rank, file=f"rank{rank}.json.gz", bytes=9) for rank in fake.ranks),
        profiled_steps=(1, 2, 3),
        last_failure_reason=fake.last_failure_reason,
    )


def plan_of(fake: Fake, state: int) -> Plan:
    """A plan that expects exactly what `attribution_of` sees when `extra_calls` is 0."""
    return Plan(
        parameter_count=3_200_000,
        state=tuple(
            RankState(rank=rank, parameter_bytes=state // 4, gradient_bytes=state // 4, optimizer_bytes=state // 2)
            for rank in fake.ranks
        ),
        collectives=tuple(
            ExpectedCollective(kind=kind, axis=axis, group=fake.ranks, count=4, bytes=fake.plan_bytes, what="test")
            for kind, (axis, *_) in fake.parts.items()
        ),
        stages=(),
        bubble_fraction=0.2 if fake.bubble is not None else None,
    )


def attribution_of(fake: Fake) -> Attribution:
    """Three steps per rank; the second is the summary step. The ledger adds up; host time is the rest."""
    return Attribution(
        summary_step=2,
        ranks=[
            RankResult(
                rank=rank,
                files=[f"rank{rank}.json.gz"],
                device="cpu",
                world_size=len(fake.ranks),
                warnings=[],
                evidence_fraction={Evidence.METADATA: 0.0, Evidence.OP: 1.0, Evidence.NAME: 0.0, Evidence.UNKNOWN: 0.0},
                steps=[step_row(fake, step, rank) for step in (1, 2, 3)],
                groups=[],
            )
            for rank in fake.ranks
        ],
        collectives=[],
        pipelines=[]
        if fake.bubble is None
        else [
            PipelineBubble(
                ranks=fake.ranks,
                micro_batches=4,
                makespan_ns=int(fake.step * MS),
                measured_fraction=fake.bubble / fake.step,
                closed_form_fraction=0.2,
            )
        ],
        clock=Clock(
            applied=True,
            offset_ns={"0": 0, "1": 1000},
            residual_ns=fake.clock_residual_ns if len(fake.ranks) > 1 else None,
        ),
        missing_ranks=[],
        skipped_files=[],
    )


def step_row(fake: Fake, step: int, rank: int) -> StepRow:
    """One ledger row; steps differ by a thousandth so that shares have a spread."""
    scale = 1 + 0.001 * (step - 2)
    busy, exposed, hidden, waits, axes = {}, {}, {}, {}, {}
    for kind, (axis, transfer, waiting, overlapped) in fake.parts.items():
        exposed[kind] = int((transfer + waiting) * scale * MS)
        waits[kind] = int(waiting * scale * MS)
        hidden[kind] = int(overlapped * MS)
        busy[kind] = exposed[kind] + hidden[kind]
        axes[kind] = {axis: exposed[kind]}
    by_axis: dict[Axis, int] = {}
    for kind, found in axes.items():
        for axis, ns in found.items():
            by_axis[axis] = by_axis.get(axis, 0) + exposed[kind] * (ns > 0)
    window = int(fake.step * scale * MS)
    compute = int(fake.compute * scale * MS)
    bubble = None if fake.bubble is None else int(fake.bubble * scale * MS)
    return StepRow(
        step=step,
        start_ns=step * 1000 * MS,
        window_ns=window,
        complete=True,
        compute_ns=compute,
        busy_ns=busy,
        exposed_ns=exposed,
        overlapped_ns=hidden,
        attributed_ns=exposed,
        attributed_by_axis_ns=by_axis,
        attributed_by_kind_axis_ns=axes,
        wait_ns=waits,
        transfer_ns={kind: busy[kind] - waits[kind] for kind in busy},
        exposed_wait_ns=waits,
        exposed_transfer_ns={kind: exposed[kind] - waits[kind] for kind in busy},
        attributed_wait_ns=waits,
        bounds=False,
        copies_exposed_ns=0,
        bubble_ns=bubble,
        bubble_phase_ns=None,
        host_other_ns=window - compute - sum(exposed.values()) - (bubble or 0),
        data_loading_ns=0,
        not_launched_ns=None,
        queued_ns=None,
        late_device_ns=0,
        foreign_device_ns=0,
        calls=[
            Calls(kind=kind, axis=axis, group=fake.ranks, count=4 + fake.extra_calls, bytes=4 * MB)
            for kind, (axis, *_) in fake.parts.items()
        ],
        flags=list(fake.flags),
    )


def ledger_csv(result: Attribution) -> str:
    """The columns of ledger.csv that add up."""
    kinds = [f"attributed_{kind}_ns" for kind in Kind]
    lines = [
        ",".join(["rank", "step", "window_ns", "compute_ns", *kinds, "copies_exposed_ns", "bubble_ns", "host_other_ns"])
    ]
    for rank in result.ranks:
        for row in rank.steps:
            values = [
                rank.rank,
                row.step,
                row.window_ns,
                row.compute_ns,
                *(row.attributed_ns.get(kind, 0) for kind in Kind),
            ]
            values += [row.copies_exposed_ns, "" if row.bubble_ns is None else row.bubble_ns, row.host_other_ns]
            lines.append(",".join(map(str, values)))
    return "\n".join(lines) + "\n"


def intervals_csv(result: Attribution) -> str:
    """The summary step in two pieces per rank."""
    lines = ["rank,category,start_ns,end_ns"]
    for rank in result.ranks:
        row = next(row for row in rank.steps if row.step == result.summary_step)
        middle = row.start_ns + row.compute_ns
        lines.append(f"{rank.rank},compute,{row.start_ns},{middle}")
        lines.append(f"{rank.rank},host_other,{middle},{row.start_ns + row.window_ns}")
    return "\n".join(lines) + "\n"


def nine() -> list[Fake]:
    """A plausible benchmark of nine strategies on two ranks."""
    data, tensor, pipeline = Axis.DATA, Axis.TENSOR, Axis.PIPELINE
    reduce, gather, scatter = Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER
    fsdp = ("batch", "optimizer_state", "gradients")
    return [
        Fake("single", "single process", (), step=180, compute=172, peak=70, all_cores=104),
        Fake("ddp", "DDP", step=100, compute=84, parts={reduce: (data, 6, 3, 4)}, peak=64),
        Fake(
            "zero1",
            "ZeRO-1 (torch ZeroRedundancyOptimizer)",
            ("batch", "optimizer_state"),
            step=106,
            compute=83,
            parts={reduce: (data, 6, 3, 4), Kind.BROADCAST: (data, 4, 1, 0)},
            peak=52,
        ),
        Fake(
            "zero2",
            "ZeRO-2 (FSDP2, parameters kept for the step)",
            fsdp,
            step=118,
            compute=85,
            parts={gather: (data, 8, 2, 0), scatter: (data, 14, 3, 0)},
            peak=58,
        ),
        Fake(
            "zero3",
            "ZeRO-3 (FSDP2)",
            (*fsdp, "parameters"),
            step=140,
            compute=86,
            parts={gather: (data, 20, 4, 0), scatter: (data, 14, 4, 0)},
            peak=44,
            request=7,
        ),
        Fake("pipeline_gpipe", "pipeline (GPipe)", ("layers",), step=122, compute=84, bubble=24, peak=50,
             parts={Kind.SEND_RECEIVE: (pipeline, 5, 0, 2)}, request=6),
        Fake("pipeline_1f1b", "pipeline (1F1B)", ("layers",), step=120, compute=84, bubble=23, peak=46,
             parts={Kind.SEND_RECEIVE: (pipeline, 5, 0, 2)}, request=6),
        Fake("tensor", "tensor parallel", ("matrices",), step=130, compute=88, peak=48,
             parts={reduce: (tensor, 28, 6, 0)}, request=4.2),
        Fake("tensor_sequence", "tensor + sequence parallel", ("matrices", "activations"), step=150, compute=88,
             peak=42, parts={gather: (tensor, 26, 4, 0), scatter: (tensor, 22, 3, 0), reduce: (data, 1, 0, 0)}),
    ]  # fmt: skip
