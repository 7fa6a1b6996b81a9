"""Refuse results that do not add up, before anything is concluded from them."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.selection.check import check

with reporting_to(snakemake.log[0]):
    check(Path(snakemake.input.run), Path(snakemake.input.attribution))
