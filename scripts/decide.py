"""Compare all strategies of one workload and decide."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.selection.api import decide, save

with reporting_to(snakemake.log[0]):
    workload = snakemake.wildcards.workload
    folders = {
        Path(run).name: (Path(run), Path(attribution))
        for run, attribution in zip(snakemake.input.runs, snakemake.input.attributions, strict=True)
    }
    decision = decide(workload, folders, load(snakemake.config).constraints_of(workload))
    save(decision, Path(snakemake.output[0]))
