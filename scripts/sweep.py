"""Compare the strategies at every point of the sweep and hold the base's rescaled ledgers against them."""

from pathlib import Path

from shardscope.bridge import reporting_to
from shardscope.config import load
from shardscope.errors import ConfigError
from shardscope.selection import decision, sweep_claims
from shardscope.selection.conditions_report import analyse

with reporting_to(snakemake.log[0]):
    sweep = load(snakemake.config).conditions
    if sweep is None:
        raise ConfigError("config: no `conditions` section; name the factors to sweep there")
    result = analyse(sweep, decision.load(Path(snakemake.input.decision[0])), Path("traces"))
    sweep_claims.save(result, Path(snakemake.output[0]))
