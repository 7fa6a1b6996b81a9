"""Render the summaries, the evidence, the predictions for named nodes (node.md), the page and the figures."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.report.api import render

with reporting_to(snakemake.log[0]):
    render(
        [Path(path) for path in snakemake.input.decisions],
        [Path(path) for path in snakemake.input.attributions],
        Path(snakemake.output.summary).parent,
        imported=snakemake.params.imported,
    )
