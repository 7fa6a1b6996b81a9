"""Measure one strategy on one workload: timing, memory, parity and traces, as one whole folder."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.measure.launch import run_strategy

with reporting_to(snakemake.log[0]):
    config = load(snakemake.config)
    workload, strategy = snakemake.wildcards.workload, snakemake.wildcards.strategy
    run_strategy(
        spec=config.spec_of(workload),
        strategy=strategy,
        parameters=dict(config.parameters_of(workload, strategy)),
        baseline=config.baseline,
        baseline_parameters=dict(config.strategy_parameters[config.baseline]),
        settings=config.settings_of(workload),
        reference=Path(snakemake.input.reference),
        output=Path(snakemake.output[0]),
        log=Path(snakemake.log[0]),
        failures=config.failures,
    )
