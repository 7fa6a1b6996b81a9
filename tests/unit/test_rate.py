"""Emulated rates: real processes in a network namespace, timed against the bytes on its loopback."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shardscope.measure import network
from shardscope.measure.launch import make_reference, run_strategy
from shardscope.measure.network import command_at_rate, unavailable
from shardscope.measure.record import RateCheck, failed_attempts, load_run
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Status
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="tiny", layers=2, hidden=64, heads=2, sequence_length=16, global_batch=8, micro_batches=2)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=1, rate_mbit=50.0
)


@pytest.fixture
def namespaces() -> None:
    """Skip where they are not allowed; where they must be (CI), that is a failure."""
    obstacle = unavailable(200.0)
    if obstacle is not None and os.environ.get("SHARDSCOPE_REQUIRE_NETNS"):
        pytest.fail(obstacle)
    if obstacle is not None:
        pytest.skip(obstacle)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("rate", [100.0, 200.0, 600.0])
def test_an_all_reduce_takes_its_bytes_over_the_rate(namespaces: None, tmp_path: Path, rate: float) -> None:
    found = tmp_path / "check.json"
    launch = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    worker = [str(Path(__file__).with_name("rate_worker.py")), str(found), str(rate)]
    done = subprocess.run(
        command_at_rate(rate, [sys.executable, *launch, *worker]),
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    check = msgspec.json.decode(found.read_bytes(), type=RateCheck)
    assert check.payload_bytes >= 8_000_000
    assert check.loopback_bytes == pytest.approx(2 * check.payload_bytes, rel=0.02)  # 2(n−1)·S, plus headers
    assert check.took_ns == pytest.approx(check.loopback_bytes * 8e3 / rate, rel=0.05)


@pytest.mark.slow
@pytest.mark.alone
def test_a_job_at_a_rate_says_so_and_takes_as_long_as_its_bytes(namespaces: None, tmp_path: Path) -> None:
    reference = tmp_path / "reference.npz"
    make_reference(spec=SPEC, settings=SETTINGS, output=reference, log=tmp_path / "log")
    record = run_strategy(
        spec=SPEC,
        strategy="ddp",
        parameters={},
        baseline="ddp",
        baseline_parameters={},
        settings=SETTINGS,
        reference=reference,
        output=tmp_path / "ddp",
        log=tmp_path / "log",
    )
    assert record.status is Status.OK, record.reason
    environment, plan, timing = record.environment, record.plan, record.timing
    assert environment is not None and environment.rate_mbit == 50.0 and environment.rate_check is not None
    assert plan is not None and timing is not None and record.parity is not None and record.parity.passed
    wire_ns = 2 * sum(each.bytes for each in plan.collectives) * 8e3 / 50.0
    # The step is little but communication: it cannot be faster than the link, nor much slower.
    assert all(0.9 * wire_ns < ns < 2 * wire_ns for triple in timing.triples for ns in triple)


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(network, "_program", lambda name: None if name == "tc" else f"/sbin/{name}")
    assert unavailable(200.0) == "tc is missing; install iproute2 (Debian: apt-get install iproute2)"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "only Linux" in str(unavailable(200.0))


def test_a_refusal_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_program", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(
        network,
        "command_at_rate",
        lambda rate, command: [sys.executable, "-c", "import sys; sys.exit('unshare: Operation not permitted')"],
    )
    assert "not allowed here (unshare: Operation not permitted)" in str(unavailable(200.0))


def test_the_machines_own_loopback_is_never_touched() -> None:
    if network._program("ip") is None or network._program("tc") is None:
        pytest.skip("iproute2 is missing")
    done = subprocess.run(
        [sys.executable, "-m", "shardscope.measure.network", "200", "true"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "not in a network namespace of its own" in done.stderr


def test_where_it_is_not_allowed_the_record_says_so_and_the_next_run_looks_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shardscope.measure.launch.unavailable", lambda rate: "tc is missing; install iproute2")
    monkeypatch.setattr("shardscope.measure.launch.load_reference", lambda *arguments: None)
    record = run_strategy(
        spec=SPEC,
        strategy="zero1",
        parameters={},
        baseline="ddp",
        baseline_parameters={},
        settings=SETTINGS,
        reference=tmp_path / "none.npz",
        output=tmp_path / "zero1",
        log=tmp_path / "log",
    )
    assert record.status is Status.NOT_APPLICABLE
    assert record.reason == "a rate of 50 Mbit/s cannot be emulated: tc is missing; install iproute2"
    assert load_run(tmp_path / "zero1") == record and failed_attempts(tmp_path / "zero1") == 1
