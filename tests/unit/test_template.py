"""The benchmark template's functions keep their exact behaviour."""

import time

import pytest

from shardscope import benchmark_fn, format_parallel_report, summarize_parallel_result

BASELINE = {"peak_mem_mb": 12000.0, "throughput": 80.0, "latency_ms": 120.0, "communication_ms": 30.0}
PARALLEL = {"peak_mem_mb": 9000.0, "throughput": 100.0, "latency_ms": 96.0, "communication_ms": 24.0}


def test_the_templates_own_test() -> None:
    counter = {"n": 0}

    def fn() -> None:
        counter["n"] += 1

    average = benchmark_fn(fn, warmup=0, iters=2)
    assert counter["n"] == 2
    assert average >= 0.0

    summary = summarize_parallel_result(BASELINE, PARALLEL)
    assert summary["memory_delta_mb"] == 3000.0
    assert summary["throughput_delta"] == 20.0
    assert summary["latency_delta_ms"] == 24.0
    assert summary["communication_delta_ms"] == 6.0
    for name in ("memory", "throughput", "latency", "communication"):
        assert summary[f"{name}_improved"] is True

    report = format_parallel_report("Tensor Parallelism", summary, "单层矩阵较大，保留 TP 并观察 All-Reduce")
    assert "Tensor Parallelism" in report
    assert "| 指标 | 变化 | 判断 |" in report
    assert "All-Reduce" in report


def test_benchmark_warms_up_and_returns_milliseconds() -> None:
    calls = []
    average = benchmark_fn(lambda: calls.append(time.sleep(0.01)))
    assert len(calls) == 7
    assert average >= 10.0


def test_worse_and_equal_are_not_improved() -> None:
    summary = summarize_parallel_result(PARALLEL, BASELINE)
    assert summary["memory_delta_mb"] == -3000.0
    assert summary["communication_improved"] is False
    equal = summarize_parallel_result(BASELINE, BASELINE)
    assert equal["latency_delta_ms"] == 0.0
    assert equal["latency_improved"] is False


def test_flags_follow_the_unrounded_difference() -> None:
    summary = summarize_parallel_result(BASELINE, {**BASELINE, "latency_ms": 119.999})
    assert summary["latency_delta_ms"] == 0.0
    assert summary["latency_improved"] is True


def test_report_text_is_exact() -> None:
    summary = summarize_parallel_result(BASELINE, {**PARALLEL, "communication_ms": 31.257})
    assert format_parallel_report("ZeRO", summary, "保留").splitlines() == [
        "策略：ZeRO",
        "| 指标 | 变化 | 判断 |",
        "| --- | --- | --- |",
        "| peak memory | 3000.0 MB | 改善 |",
        "| throughput | 20.0 | 改善 |",
        "| latency | 24.0 ms | 改善 |",
        "| communication | -1.26 ms | 未改善 |",
        "推荐结论：保留。",
    ]


def test_a_missing_metric_is_an_error() -> None:
    with pytest.raises(KeyError):
        summarize_parallel_result({}, PARALLEL)
