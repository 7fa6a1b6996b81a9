"""Measure one strategy on one workload: timing, memory, parity and traces, as one whole folder."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.measure.launch import run_strategy

with reporting_to(snakemake.log[0]):
    config = load(snakemake.config)
    strategy = snakemake.wildcards.strategy
    run_strategy(
        spec=config.workloads[snakemake.wildcards.workload],
        strategy=strategy,
        parameters=dict(config.strategy_parameters[strategy]),
        baseline=config.baseline,
        baseline_parameters=dict(config.strategy_parameters[config.baseline]),
        settings=config.measure,
        reference=Path(snakemake.input.reference),
        output=Path(snakemake.output[0]),
        log=Path(snakemake.log[0]),
        failures=config.failures,
    )
