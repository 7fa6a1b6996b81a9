"""Merge the ranks of one run into one trace for Perfetto."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.view.merge import merge

with reporting_to(snakemake.log[0]):
    merge([Path(snakemake.input.run)], Path(snakemake.output[0]))
