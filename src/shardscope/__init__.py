"""shardscope: choose a parallel-training strategy from profiler traces, with evidence."""

from shardscope.template import benchmark_fn, format_parallel_report, summarize_parallel_result

__all__ = ["benchmark_fn", "format_parallel_report", "summarize_parallel_result"]
