"""HolisticTraceAnalysis beside ours: agreement where both count the same, named differences where not."""

import builtins
from pathlib import Path
from typing import Any

import pytest
from handmade import HandMade, dims

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.hta import second_opinion

US = 1000


def cpu_run(folder: Path) -> None:
    """Nested and overlapping operators on two threads, two communication kinds, one partly hidden."""
    for rank in (0, 1):
        trace = HandMade(rank).step(1, 0, 1000).step(2, 1000, 2200)
        for base in (0, 1000):
            trace.op("aten::linear", base + 10.5, base + 300).op("aten::addmm", base + 12.125, base + 290)
            trace.op("aten::mul", base + 200, base + 420.25, tid=2)
            trace.op("c10d::allreduce_", base + 420.25, base + 425, **dims(64))
            trace.span("gloo:all_reduce", base + 430, base + 700, **dims(64)).op("aten::mm", base + 500, base + 620)
            trace.op("c10d::_allgather_base_", base + 700, base + 705, **dims(64, 32))
            trace.span("gloo:all_gather", base + 690 + 15, base + 800, **dims(32))
        trace.write(folder / f"rank{rank}.json")


def test_cpu_rows_agree_to_the_nanosecond(tmp_path: Path) -> None:
    pytest.importorskip("hta")
    cpu_run(tmp_path)
    result = attribute_paths([tmp_path])
    opinion = second_opinion(tmp_path, result)
    assert opinion.available
    assert opinion.version
    assert {row.rank for row in opinion.rows} == {0, 1}
    by_name = {row.quantity: row for row in opinion.rows if row.rank == 0}
    assert set(by_name) == {"kernel_time", "compute_time", "non_compute_time", "idle_time", "overlap_time"}
    chosen = next(row for row in result.ranks[0].steps if row.step == result.summary_step)
    assert by_name["compute_time"].ours_ns == chosen.compute_ns
    for name in ("kernel_time", "compute_time", "non_compute_time", "idle_time"):
        assert by_name[name].difference_ns == pytest.approx(0, abs=1)
    assert not any(row.flagged for row in opinion.rows if row.quantity != "overlap_time")
    assert all(row.cause == "HTA rounds the overlap to 0.01 %" for row in opinion.rows if row.flagged)


def test_a_wrong_ledger_would_be_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with 5 µs of our compute taken away, HTA disagrees."""
    pytest.importorskip("hta")
    from shardscope.attribution import hta

    cpu_run(tmp_path)
    result = attribute_paths([tmp_path])
    honest = hta._Sets.numbers

    def dishonest(sets: Any) -> dict[str, float]:
        return honest(sets) | {"compute_time": honest(sets)["compute_time"] - 5000}

    monkeypatch.setattr(hta._Sets, "numbers", dishonest)
    flagged = [row for row in second_opinion(tmp_path, result).rows if row.flagged and row.quantity == "compute_time"]
    assert [row.difference_ns for row in flagged] == pytest.approx([5000, 5000])
    assert {row.cause for row in flagged} == {"not explained"}


def test_device_traces_go_to_hta_as_they_are_and_custom_kernels_are_named(tmp_path: Path) -> None:
    pytest.importorskip("hta")
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    trace.kernel("gemm", 0, 30, correlation=1, launch=0)
    trace.kernel("void vllm::cross_device_reduce_1stage<float>(x)", 20, 50, 20, correlation=2, launch=1)
    opinion = second_opinion(tmp_path, attribute_paths([trace.write(tmp_path / "rank0.json")]))
    by_name = {row.quantity: row for row in opinion.rows}
    assert (by_name["compute_time"].ours_ns, by_name["compute_time"].hta_ns) == (30 * US, 50 * US)
    assert by_name["compute_time"].flagged
    assert "other libraries" in str(by_name["compute_time"].cause)
    assert not by_name["kernel_time"].flagged


def test_idle_time_of_streams_beside_htas(tmp_path: Path) -> None:
    """Stream 7: [0,30), [40,50) launched at 35, too late; [60,70) launched at 5, 10 after the last; [170,180) launched
    at 6, long held: host wait 10, kernel wait 10, other 100. Stream 20: one kernel, no gap."""
    pytest.importorskip("hta")
    trace = HandMade(0, 1, "nccl").step(1, 0, 200).kernel("a", 0, 30, correlation=1, launch=0)
    trace.kernel("b", 40, 50, correlation=2, launch=35).kernel("c", 60, 70, correlation=3, launch=5)
    trace.kernel("d", 170, 180, correlation=4, launch=6)
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 70, 168, 20, correlation=5, launch=7)
    result = attribute_paths([trace.write(tmp_path / "rank0.json")])
    rows = {row.quantity: row for row in second_opinion(tmp_path, result).rows}
    for name, right in (("host_wait", 10), ("kernel_wait", 10), ("other", 100)):
        row = rows[f"stream_{name}_time"]
        assert (row.ours_ns, row.hta_ns, row.flagged) == (right * US, right * US, False)
    # The ledger counts idleness of the whole device: the communication covers most of the long gap.
    (step,) = result.ranks[0].steps
    assert (step.not_launched_ns, step.queued_ns) == (5 * US, (5 + 10 + 2) * US)


def test_several_devices_in_one_file_are_not_given_to_hta(tmp_path: Path) -> None:
    pytest.importorskip("hta")
    trace = HandMade(0, 1, "nccl").step(1, 0, 100)
    for device in (0, 1):
        trace.add("kernel", "gemm", 10, 50, 7, device=device, stream=7, correlation=device + 1)
    opinion = second_opinion(tmp_path, attribute_paths([trace.write(tmp_path / "rank0.json")]))
    assert not opinion.available
    assert "several devices" in str(opinion.reason)


def test_without_hta_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_run(tmp_path)
    result = attribute_paths([tmp_path])
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "hta":
            raise ModuleNotFoundError("No module named 'hta'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    opinion = second_opinion(tmp_path, result)
    assert not opinion.available
    assert "not installed" in str(opinion.reason)
    assert opinion.rows == []
