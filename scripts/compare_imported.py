"""Render the comparison of all imported runs, the first in the configuration being what the others are held against."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.report.imported_comparison import render_comparison

with reporting_to(snakemake.log[0]):
    imported = load(snakemake.config).imported
    folders = {Path(folder).name: Path(folder) for folder in snakemake.input}
    runs = [(name, folders[name], run.path) for name, run in imported.items()]
    render_comparison(runs, Path(snakemake.output[0]).parent)
