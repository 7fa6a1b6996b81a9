"""Compute the single-process reference of one workload: gradients of step 0 and losses."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.measure.launch import make_reference

with reporting_to(snakemake.log[0]):
    config = load(snakemake.config)
    make_reference(
        spec=config.spec_of(snakemake.wildcards.workload),
        settings=config.settings_of(snakemake.wildcards.workload),
        output=Path(snakemake.output[0]),
        log=Path(snakemake.log[0]),
    )
