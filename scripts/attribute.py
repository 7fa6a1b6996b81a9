"""Attribute one run's step time and write its tables, with HolisticTraceAnalysis as second opinion."""

from pathlib import Path

from shardscope.attribution.api import attribute_run
from shardscope.attribution.hta import second_opinion
from shardscope.attribution.tables import write_tables
from shardscope.bridge import reporting_to
from shardscope.measure.record import load_run
from shardscope.vocabulary import Status

with reporting_to(snakemake.log[0]):
    run, tables = Path(snakemake.input.run), Path(snakemake.output[0])
    if load_run(run).status is Status.OK:
        result = attribute_run(run)
        write_tables(result, tables, second_opinion=second_opinion(run, result))
    else:
        # Nothing was traced: an empty folder, and the report says why.
        tables.mkdir(parents=True, exist_ok=True)
