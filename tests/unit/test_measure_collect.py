"""What ranks hand back is checked before it becomes a result, and results replace each other whole."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardscope import strategies
from shardscope.errors import MeasurementError
from shardscope.measure import folder as folders
from shardscope.measure.collect import collect
from shardscope.measure.job import AGREED_FILE, Agreed, Job, RankResult, write_json
from shardscope.measure.record import (
    SCHEMA_VERSION,
    CommunicationCall,
    Environment,
    Parity,
    RankMemory,
    RunRecord,
    StrategyRecord,
    TraceFile,
    load_run,
)
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Axis, Kind, Status
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="w", layers=2, hidden=8, heads=2, sequence_length=8, global_batch=4, micro_batches=2)
SETTINGS = MeasureSettings(triples=3, requests=3, loss_steps=4, profiled_steps=1)
JOB = Job(
    spec=SPEC, strategy="ddp", parameters={}, baseline="ddp", baseline_parameters={}, settings=SETTINGS,
    mode="alternate", reference="", folder="",
)  # fmt: skip
BASE = RunRecord(
    schema=SCHEMA_VERSION, status=Status.OK, reason=None, started_at="", finished_at="", workload=SPEC, baseline="ddp",
    strategy=StrategyRecord(name="ddp", display_name="DDP", shards=("batch",), parameters={}),
)  # fmt: skip
CALL = CommunicationCall(step=1, kind=Kind.ALL_REDUCE, axis=Axis.DATA, group=(0, 1), bytes=8, op="c10d::allreduce_")


def result(rank: int, **changes: Any) -> RankResult:
    memory = RankMemory(
        rank=rank, parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8, other_bytes_at_peak=5, peak_bytes=21,
        residue_bytes=0, rss_peak_bytes=None,
    )  # fmt: skip
    usual: dict[str, Any] = {
        "rank": rank, "world_size": 2, "active": True, "mode": "alternate", "losses": (4.0, 3.0, 2.0, 1.0),
        "memory": memory, "communication": (CALL,), "profiled_steps": (1,), "trace": f"rank{rank}.json.gz",
    }  # fmt: skip
    if rank == 0:
        usual |= {
            "reference_losses": (4.0, 3.0, 2.0, 1.0), "triples": ((5, 6, 5),) * 3, "candidate_ns": (6,) * 3,
            "latency_baseline_ns": (1, 1, 1), "latency_candidate_ns": (2, 2, 2), "matmul_peak_flops_per_s": 1e9,
            "profiled_step_ns": 7, "plain_step_ns": 6,
            "parity": Parity(
                tolerance=1e-5, gradient_error=0.0, worst_parameter="a", loss_error=0.0, loss_steps=4, passed=True
            ),
            "environment": Environment(
                host="h", cpu="c", physical_cores=2, usable_cores=2, world_size=2, threads_per_rank=1, device="cpu",
                device_names=("c",), backend="gloo", memory_bytes=1, versions={}, oversubscribed=False,
            ),
        }  # fmt: skip
    return RankResult(**{**usual, **changes})


def write(folder: Path, *results: RankResult) -> None:
    plan = strategies.get("ddp").plan(SPEC, 2, strategies.get("ddp").defaults)
    agreed = Agreed(world_size=2, threads_per_rank=1, not_applicable=None, baseline_not_applicable=None, plan=plan)
    write_json(folder / AGREED_FILE, agreed)
    for found in results:
        write_json(folder / f"rank{found.rank}.result.json", found)
        (folder / f"rank{found.rank}.json.gz").write_bytes(b"\x1f\x8b trace")


def test_sound_results_become_a_record(tmp_path: Path) -> None:
    write(tmp_path, result(0), result(1))
    record = collect(JOB, tmp_path, BASE)
    assert record.timing is not None
    assert record.timing.triples == ((5, 6, 5),) * 3
    assert [trace.file for trace in record.traces] == ["rank0.json.gz", "rank1.json.gz"]
    assert set(record.communication) == {"0", "1"}
    assert msgspec.json.decode(msgspec.json.encode(record), type=RunRecord) == record


UNSOUND = {
    "ranks disagree on losses": (result(0), result(1, losses=(4.0, 3.0, 2.0, 1.5))),
    "too few losses": (result(0, losses=(4.0,)), result(1, losses=(4.0,))),
    "no comparison": (result(0, parity=None), result(1)),
    "too few triples": (result(0, triples=((5, 6, 5),)), result(1)),
    "a time of zero": (result(0, candidate_ns=(6, 0, 6)), result(1)),
    "too few requests": (result(0, latency_candidate_ns=(1,)), result(1)),
    "no matmul peak": (result(0, matmul_peak_flops_per_s=0.0), result(1)),
    "no profiled step": (result(0), result(1, profiled_steps=())),
    "no memory figures": (result(0), result(1, memory=None)),
    "memory does not add up": (result(0), result(1, memory=msgspec.structs.replace(result(1).memory, peak_bytes=1))),
    "communication of an unknown rank": (
        result(0),
        result(1, communication=(msgspec.structs.replace(CALL, group=(0, 7)),)),
    ),
    "communication of another step": (result(0), result(1, communication=(msgspec.structs.replace(CALL, step=9),))),
    "another world": (result(0), result(1, world_size=4)),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_unsound_results_are_refused(case: str, tmp_path: Path) -> None:
    write(tmp_path, *UNSOUND[case])
    with pytest.raises(MeasurementError):
        collect(JOB, tmp_path, BASE)


def test_missing_and_damaged_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, result(0))
    with pytest.raises(MeasurementError, match="rank 1 left no result"):
        collect(JOB, tmp_path, BASE)
    write(tmp_path, result(0), result(1))
    (tmp_path / "rank1.json.gz").write_bytes(b'{"traceEvents"')
    with pytest.raises(MeasurementError, match="rank 1 left a trace that is not gzip"):
        collect(JOB, tmp_path, BASE)
    (tmp_path / "rank0.result.json").write_text('{"rank": 0')
    with pytest.raises(MeasurementError, match="rank 0 left a result that cannot be read"):
        collect(JOB, tmp_path, BASE)


def test_a_trace_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, result(0), result(1, trace="../rank1.json.gz"))
    (tmp_path / "rank1.json.gz").write_bytes(b"\x1f\x8b")
    assert collect(JOB, inner, BASE).traces[1].file == "rank1.json.gz"
    (inner / "rank1.json.gz").unlink()
    with pytest.raises(MeasurementError, match="rank 1 left no trace"):
        collect(JOB, inner, BASE)


def test_a_result_replaces_another_whole_and_survives_a_kill_in_between(tmp_path: Path) -> None:
    output = tmp_path / "ddp"
    source = tmp_path / "made.json.gz"
    source.write_bytes(b"\x1f\x8b one")
    record = msgspec.structs.replace(BASE, traces=(TraceFile(rank=0, file="rank0.json.gz", bytes=6),))
    with folders.working_folder(output) as work:
        assert work.parent == tmp_path
        folders.publish(record, {"rank0.json.gz": source, "rank1.json.gz": source}, output, work)
    with folders.working_folder(output) as work:
        folders.publish(record, folders.kept_files(record, output), output, work)
    assert sorted(path.name for path in output.iterdir()) == ["rank0.json.gz", "run.json"]
    assert load_run(output) == record
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ddp", "made.json.gz"], "nothing is left beside"
    output.rename(tmp_path / ".ddp.earlier")  # killed after the first rename
    assert folders.earlier_result(output) == record
    (output / "rank0.json.gz").unlink()
    assert folders.kept_files(record, output) == {}, "a result without its trace is none"


def test_what_a_killed_run_left_is_cleared_and_a_running_one_is_not(tmp_path: Path) -> None:
    output = tmp_path / "ddp"
    with folders.working_folder(output) as running, folders.working_folder(output):
        assert running.exists()
        dead = running.with_name(running.name.replace(f".{folders.os.getpid()}.", ".999999999."))
        dead.mkdir()
        with folders.working_folder(output):
            assert running.exists()
            assert not dead.exists()
