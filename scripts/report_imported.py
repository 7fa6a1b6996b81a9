"""Render the report on one imported run, in both languages, with its figure."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.report.imported import render_run

with reporting_to(snakemake.log[0]):
    name = snakemake.wildcards.imported
    run = load(snakemake.config).imported[name]
    render_run(
        name,
        Path(snakemake.input[0]),
        run.path,
        Path(snakemake.output[0]).parent,
        salvage=run.salvage,
        compared=snakemake.params.compared,
    )
