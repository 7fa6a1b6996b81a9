"""The three functions of the benchmark template, with their exact behaviour; other projects call them as they are."""

import time
from collections.abc import Callable, Mapping

__all__ = ["benchmark_fn", "format_parallel_report", "summarize_parallel_result"]


def benchmark_fn(fn: Callable[[], object], warmup: int = 2, iters: int = 5) -> float:
    """Mean wall-clock milliseconds of `iters` calls of `fn`, after `warmup` calls that do not count.

    The caller synchronises an asynchronous device inside `fn`. `iters` of 0 raises ZeroDivisionError.
    """
    for _ in range(warmup):
        fn()
    start = time.perf_counter()
    for _ in range(iters):
        fn()
    return (time.perf_counter() - start) / iters * 1000


def summarize_parallel_result(
    base_metrics: Mapping[str, float], parallel_metrics: Mapping[str, float]
) -> dict[str, float | bool]:
    """Differences between a baseline and a parallel run; positive means the parallel run is better.

    Both mappings hold `peak_mem_mb`, `throughput`, `latency_ms` and `communication_ms`; a missing one raises KeyError.
    Deltas are rounded to two decimals, the four `*_improved` flags follow from the unrounded ones.
    """
    memory = base_metrics["peak_mem_mb"] - parallel_metrics["peak_mem_mb"]
    throughput = parallel_metrics["throughput"] - base_metrics["throughput"]
    latency = base_metrics["latency_ms"] - parallel_metrics["latency_ms"]
    communication = base_metrics["communication_ms"] - parallel_metrics["communication_ms"]
    return {
        "memory_delta_mb": round(memory, 2),
        "throughput_delta": round(throughput, 2),
        "latency_delta_ms": round(latency, 2),
        "communication_delta_ms": round(communication, 2),
        "memory_improved": memory > 0,
        "throughput_improved": throughput > 0,
        "latency_improved": latency > 0,
        "communication_improved": communication > 0,
    }


def format_parallel_report(strategy_name: str, summary: Mapping[str, float | bool], recommendation: str) -> str:
    """The template's Markdown report (Chinese) of one strategy from `summarize_parallel_result`'s summary."""

    def judged(improved: str) -> str:
        return "改善" if summary[improved] else "未改善"

    return "\n".join(
        [
            f"策略：{strategy_name}",
            "| 指标 | 变化 | 判断 |",
            "| --- | --- | --- |",
            f"| peak memory | {summary['memory_delta_mb']} MB | {judged('memory_improved')} |",
            f"| throughput | {summary['throughput_delta']} | {judged('throughput_improved')} |",
            f"| latency | {summary['latency_delta_ms']} ms | {judged('latency_improved')} |",
            f"| communication | {summary['communication_delta_ms']} ms | {judged('communication_improved')} |",
            f"推荐结论：{recommendation}。",
        ]
    )
