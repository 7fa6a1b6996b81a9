import sys

import jsonschema
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

try:
    from shardscope import config as shardscope_config
    from shardscope import provenance
    from shardscope.errors import ShardscopeError
    from shardscope.measure.record import failed_attempts
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error.name} is missing in this Python environment; run `make report`, "
        "or `pip install -r requirements.lock -e .` in the active one"
    )


def checked(raw):
    """The typed configuration, or one line on the console before anything runs."""
    try:
        validate(raw, "../schemas/config.schema.yaml")
        return shardscope_config.load(raw)
    except WorkflowError as error:
        cause = error.__context__
        if not isinstance(cause, jsonschema.ValidationError):
            raise
        sys.exit(f"error: {shardscope_config.explain(cause)}")
    except ShardscopeError as error:
        sys.exit(f"error: {error}")


CONFIG = checked(config)


wildcard_constraints:
    workload="|".join(CONFIG.workloads),
    strategy="|".join(CONFIG.strategies),


def measuring_params(wildcards):
    """All that one measurement depends on; a change of it measures that strategy again."""
    names = (wildcards.strategy, CONFIG.baseline)
    return {
        "digest": provenance.measuring_digest(*names),
        "workload": repr(CONFIG.workloads[wildcards.workload]),
        "parameters": {name: CONFIG.strategy_parameters[name] for name in names},
        "baseline": CONFIG.baseline,
        "measure": repr(CONFIG.measure),
        # A failed run counts its failure in run.json, which differs from the count it was started with: retried.
        "attempt": failed_attempts(f"traces/{wildcards.workload}/{wildcards.strategy}"),
    }


def of_workload(pattern):
    """Input function: `pattern` for every strategy of the wildcards' workload."""
    return lambda wildcards: expand(
        pattern, workload=wildcards.workload, strategy=CONFIG.strategies
    )
