"""Render the conditions report in both languages, with its figures."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.report.conditions import render_conditions

with reporting_to(snakemake.log[0]):
    render_conditions(Path(snakemake.input[0]), Path(snakemake.output.english).parent)
