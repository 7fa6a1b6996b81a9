"""Attribute one run's step time and write its tables, with HolisticTraceAnalysis as second opinion."""

from pathlib import Path

from shardscope.attribution.api import attribute_run
from shardscope.attribution.hta import second_opinion
from shardscope.attribution.tables import write_tables
from shardscope.bridge import reporting_to

with reporting_to(snakemake.log[0]):
    run = Path(snakemake.input.run)
    result = attribute_run(run)
    write_tables(result, Path(snakemake.output[0]), second_opinion=second_opinion(run, result))
