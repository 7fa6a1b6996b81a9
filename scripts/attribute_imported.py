"""Attribute the traces of a run that happened elsewhere and write its tables."""

from pathlib import Path

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.hta import second_opinion
from shardscope.attribution.result import SecondOpinion
from shardscope.attribution.tables import write_tables
from shardscope.bridge import reporting_to
from shardscope.config import load

with reporting_to(snakemake.log[0]):
    run = load(snakemake.config).imported[snakemake.wildcards.imported]
    result = attribute_paths([run.path], salvage=run.salvage, ranks=run.ranks, patterns=run.patterns)
    if run.second_opinion:
        opinion = second_opinion(run.path, result)
    else:
        opinion = SecondOpinion(available=False, reason="switched off in the configuration", version=None, rows=[])
    write_tables(result, Path(snakemake.output[0]), second_opinion=opinion)
