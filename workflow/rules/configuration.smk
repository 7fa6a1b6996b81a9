import sys
from pathlib import Path

try:
    from shardscope import config as shardscope_config
    from shardscope import provenance
    from shardscope.configfile import refuse_unreadable
    from shardscope.errors import ShardscopeError
    from shardscope.measure.record import failed_attempts
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error.name} is missing in this Python environment; run `make report`, "
        "or `pip install -r requirements.lock -e .` in the active one"
    )


def readable(paths):
    """One line for what Snakemake would not say, or not say clearly: where the syntax is wrong, keys given twice."""
    try:
        for path in paths:
            refuse_unreadable(Path(path))
    except ShardscopeError as error:
        sys.exit(f"error: {error}")


readable(workflow.config_settings.configfiles or ["config/config.yaml"])
