"""Real launches of a tiny workload: what is recorded when all goes well, and when it does not."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardscope.errors import ConfigError, MeasurementError
from shardscope.measure import progress
from shardscope.measure.job import RankPhase, read_json
from shardscope.measure.launch import make_reference, run_strategy
from shardscope.measure.record import RunRecord, load_run
from shardscope.measure.session import SIMULATED_OOM
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Status
from shardscope.workload.spec import WorkloadSpec

pytestmark = pytest.mark.slow
Told = list[list[tuple[str, int]]]  # per launch: phase and its place in the order

SPEC = WorkloadSpec(name="tiny", layers=2, hidden=32, heads=2, sequence_length=16, global_batch=8, micro_batches=2)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=2, timeout_s=120
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reference in it."""
    folder = tmp_path_factory.mktemp("traces")
    make_reference(spec=SPEC, settings=SETTINGS, output=folder / "reference.npz", log=folder / "logs" / "reference.log")
    return folder


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What rank 0 tells somebody at a terminal, per launch."""
    launches: Told = []

    class Listening(progress.Estimate):
        def __init__(self, expected: Sequence[progress.Phase]) -> None:
            super().__init__(expected)
            launches.append([])

        def note(self, name: str, done: int, time_s: float) -> None:
            super().note(name, done, time_s)
            assert self.expected[self.at].name == name, "a phase that was not foreseen"
            assert done <= self.expected[self.at].count
            launches[-1].append((name, self.at))

    monkeypatch.setattr(progress, "Estimate", Listening)
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    return launches


def every_phase_was_told(told: Told, expected: int) -> bool:
    return {at for _, at in told[-1]} >= set(range(expected - 1))  # the end may come before the launcher looks


def run(place: Path, strategy: str, name: str | None = None, **changes: Any) -> RunRecord:
    arguments: dict[str, Any] = {
        "spec": SPEC, "strategy": strategy, "parameters": {}, "baseline": "ddp", "baseline_parameters": {},
        "settings": SETTINGS, "reference": place / "reference.npz", "output": place / (name or strategy),
        "log": place / "logs" / f"{name or strategy}.log",
    }  # fmt: skip
    return run_strategy(**{**arguments, **changes})


def visible(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {"reference.npz", "logs"}


def added(rows: Iterable[tuple[object, int, int]]) -> dict[object, tuple[int, int]]:
    """Count and bytes per key."""
    counts, sizes = Counter[object](), Counter[object]()
    for key, count, size in rows:
        counts[key] += count
        sizes[key] += size
    return {key: (counts[key], sizes[key]) for key in counts}


def test_a_measurement_is_whole_and_matches_its_plan(place: Path, told: Told) -> None:
    record = run(place, "zero3")
    assert every_phase_was_told(told, 11)
    assert record.status is Status.OK, record.reason
    assert load_run(place / "zero3") == record
    assert record.plan is not None
    assert record.environment is not None
    assert record.timing is not None
    assert record.latency is not None
    assert record.parity is not None
    assert record.environment.world_size == 2
    assert (record.timing.mode, len(record.timing.triples)) == ("alternate", 3)
    assert len(record.latency.baseline_ns) == len(record.latency.candidate_ns) == 3
    assert record.parity.passed
    for state, memory in zip(record.plan.state, record.memory, strict=True):
        assert memory.parameter_bytes == pytest.approx(state.parameter_bytes, rel=0.01)
        assert memory.gradient_bytes == pytest.approx(state.gradient_bytes, rel=0.01)
        assert memory.optimizer_bytes == pytest.approx(state.optimizer_bytes, rel=0.01)
        assert memory.other_bytes_at_peak > 0
    planned = added(((c.kind, c.axis, c.group), c.count, c.bytes) for c in record.plan.collectives)
    for calls in record.communication.values():
        for step in record.profiled_steps:
            seen = added(((c.kind, c.axis, c.group), 1, c.bytes) for c in calls if c.step == step)
            assert seen == planned
    for trace in record.traces:
        assert (place / "zero3" / trace.file).stat().st_size == trace.bytes
    assert {path.name for path in (place / "zero3").iterdir()} == {"run.json", "rank0.json.gz", "rank1.json.gz"}
    assert not [name for name in visible(place) if name.startswith(".")]


def test_single_is_timed_with_all_cores_and_leaves_one_trace(place: Path) -> None:
    record = run(place, "single")
    assert record.status is Status.OK, record.reason
    assert record.all_cores is not None
    assert len(record.all_cores.step_ns) == len(record.all_cores.baseline_ns) == 3
    assert [memory.rank for memory in record.memory] == [trace.rank for trace in record.traces] == [0]
    assert record.communication == {"0": ()}


def phases(place: Path, name: str) -> list[RankPhase]:
    found = []
    for path in place.glob(f".{name}.*/*/rank*.phase.json"):
        try:
            found.append(read_json(path, RankPhase))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def wait_for_phase(place: Path, name: str, phase: str) -> list[RankPhase]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = phases(place, name)
        if len(now) == 2 and all(rank.phase == phase for rank in now):
            return now
        time.sleep(0.05)
    raise AssertionError(f"phase {phase} never came")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def earlier(place: Path) -> Iterator[Path]:
    """A finished result of pipeline_1f1b, so that reruns have something to lose."""
    if not (place / "pipeline_1f1b").exists():
        assert run(place, "pipeline_1f1b").status is Status.OK
    yield place / "pipeline_1f1b"


def test_a_killed_rank_is_recorded_within_a_minute_and_the_earlier_result_kept(place: Path, earlier: Path) -> None:
    before = load_run(earlier)
    longer = msgspec.structs.replace(SETTINGS, triples=3000)
    started: list[float] = []

    def kill() -> None:
        ranks = {rank.rank: rank.pid for rank in wait_for_phase(place, "pipeline_1f1b", "timing")}
        started.append(time.monotonic())
        os.kill(ranks[1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    record = run(place, "pipeline_1f1b", settings=longer)
    killer.join()
    assert time.monotonic() - started[0] < 60
    assert record.status is Status.OK, "the earlier result stands"
    assert record.timing == before.timing
    assert record.traces == before.traces
    assert record.failed_attempts == before.failed_attempts + 1
    assert record.last_failure_reason is not None
    assert "rank 1 was killed by SIGKILL during timing" in record.last_failure_reason
    assert record.last_failure is not None
    assert (record.last_failure.rank, record.last_failure.signal) == (1, "SIGKILL")
    assert any("[shardscope]" in line for line in record.last_failure.log_tail)
    assert load_run(earlier) == record
    assert all((earlier / trace.file).is_file() for trace in record.traces)


def test_an_exception_is_a_failure_of_its_rank_without_traces(place: Path) -> None:
    first = run(place, "toy_strategies:CRASHING", "crashing")
    assert first.status is Status.FAILED
    assert first.reason is not None
    assert "rank 1 failed during losses: ValueError: deliberate" in first.reason
    assert first.failure is not None
    assert first.failure.rank == 1
    assert any("ValueError: deliberate" in line for line in first.failure.log_tail)
    assert (first.traces, first.failed_attempts) == ((), 1)
    assert [path.name for path in (place / "crashing").iterdir()] == ["run.json"]
    with pytest.raises(MeasurementError, match="crashing on tiny: rank 1 failed"):
        run(place, "toy_strategies:CRASHING", "crashing", failures="stop")
    assert load_run(place / "crashing") == first, "stop leaves what was there"


def test_a_baseline_that_does_not_fit(place: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setenv(SIMULATED_OOM, "ddp")
    alone = run(place, "tensor", "alone")
    assert every_phase_was_told(told, 10)
    assert alone.status is Status.OK, alone.reason
    assert alone.timing is not None
    assert alone.latency is not None
    assert (alone.timing.mode, alone.timing.baseline, alone.timing.triples) == ("alone", None, ())
    assert len(alone.timing.candidate_ns) == 3
    assert alone.latency.baseline_ns == ()
    assert any("baseline does not fit" in note for note in alone.notes)
    baseline = run(place, "ddp", "short")
    assert baseline.status is Status.OUT_OF_MEMORY
    assert baseline.traces == ()
    assert baseline.failed_attempts == 0, "running out of memory is a result, not a failure to retry"


def test_two_models_that_do_not_fit_together_are_timed_in_blocks(
    place: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setenv(SIMULATED_OOM, "together")
    record = run(place, "toy_strategies:TALKATIVE", "talkative")
    assert every_phase_was_told(told, 18)
    assert record.status is Status.OK, record.reason
    assert record.timing is not None
    assert record.latency is not None
    assert (record.timing.mode, len(record.timing.triples)) == ("blocks", 3)
    assert len(record.latency.baseline_ns) == 6
    # The plan is ddp's: the extra all-reduce of 24 bytes per step must show.
    assert record.plan is not None
    planned = sum(expected.count for expected in record.plan.collectives)
    for calls in record.communication.values():
        assert len(calls) == 2 * (planned + 1)
        assert sum(call.bytes == 24 for call in calls) == 2


def test_not_applicable_comes_with_its_reason(place: Path) -> None:
    record = run(place, "zero1", settings=msgspec.structs.replace(SETTINGS, world_size=3))
    assert record.status is Status.NOT_APPLICABLE
    assert record.reason == "micro-batch size 4 cannot be divided by 3 ranks"
    assert (record.traces, record.failed_attempts) == ((), 0)


def test_a_hanging_rank_ends_at_the_time_limit(place: Path) -> None:
    limit = msgspec.structs.replace(SETTINGS, timeout_s=15)
    record = run(place, "toy_strategies:STUCK", "stuck", settings=limit)
    assert record.status is Status.FAILED
    assert record.reason is not None
    assert record.reason.startswith("not finished after 15 s (rank 0 in ")
    assert record.failure is not None
    assert "rank 1 is about to hang" in record.failure.log_tail


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_launcher(place: Path, how: signal.Signals) -> None:
    name = f"orphan{how.value}"
    code = (
        "import sys, msgspec, test_measure_launch as t; from pathlib import Path; "
        "t.run(Path(sys.argv[1]), 'ddp', sys.argv[2], settings=msgspec.structs.replace(t.SETTINGS, triples=5000))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(place), name])
    ranks = wait_for_phase(place, name, "timing")
    launcher.send_signal(how)
    launcher.wait(30)
    deadline = time.monotonic() + 15
    while not all(gone(rank.pid) for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(gone(rank.pid) for rank in ranks)
    assert name not in visible(place), "nothing half-written looks finished"
    left = [hidden for hidden in visible(place) if hidden.startswith(f".{name}.")]
    assert bool(left) == (how is signal.SIGKILL), "only a launcher that was shot could not clean up"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "zero9"}, "unknown strategy 'zero9'"),
        ({"parameters": {"bucket": 1}}, "has no parameter bucket"),
        ({"baseline": "dpp"}, "did you mean 'ddp'"),
        ({"strategy": "toy_strategies:NOTHING"}, "cannot be imported"),
    ],
)
def test_mistakes_are_told_before_anything_runs(place: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(place, **{"strategy": "ddp", "name": "mistaken", **changes})
    assert "mistaken" not in visible(place)
    with pytest.raises(MeasurementError, match="not a usable reference"):
        run(place, "ddp", "mistaken", reference=place / "absent.npz")
