import jsonschema
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate


def checked(raw):
    """The typed configuration, or one line on the console before anything runs."""
    try:
        validate(raw, "../schemas/config.schema.yaml")
        for path in workflow.config_settings.configfiles or ["config/config.yaml"]:
            shardscope_config.settle_models(raw, Path(path).parent)
        return shardscope_config.load(raw)
    except WorkflowError as error:
        cause = error.__context__
        if not isinstance(cause, jsonschema.ValidationError):
            raise
        sys.exit(f"error: {shardscope_config.explain(cause)}")
    except ShardscopeError as error:
        sys.exit(f"error: {error}")


CONFIG = checked(config)


NEVER = "(?!)"  # an empty alternative would match everything


wildcard_constraints:
    workload="|".join(CONFIG.measured) or NEVER,
    strategy="|".join(CONFIG.strategies) or NEVER,
    imported="|".join(CONFIG.imported) or NEVER,


def measuring_params(wildcards):
    """All that one measurement depends on; a change of it measures that strategy again."""
    workload, names = wildcards.workload, (wildcards.strategy, CONFIG.baseline)
    spec = CONFIG.spec_of(workload)
    parameters = {name: dict(CONFIG.strategy_parameters[name]) for name in names}
    parameters[wildcards.strategy] = dict(
        CONFIG.parameters_of(workload, wildcards.strategy)
    )
    if wildcards.strategy == CONFIG.baseline:
        # Two parameters of one name: the candidate's may be swept, the baseline's are not.
        usual = dict(CONFIG.strategy_parameters[CONFIG.baseline])
        if parameters[CONFIG.baseline] != usual:
            parameters["baseline"] = usual
    return {
        "digest": provenance.measuring_digest(*names, workload=spec),
        "workload": repr(spec),
        "parameters": parameters,
        "baseline": CONFIG.baseline,
        "measure": repr(CONFIG.settings_of(workload)),
        # A failed run counts its failure in run.json, which differs from the count it was started with: retried.
        "attempt": failed_attempts(f"traces/{wildcards.workload}/{wildcards.strategy}"),
    }


def of_workload(pattern):
    """Input function: `pattern` for every strategy of the wildcards' workload."""
    return lambda wildcards: expand(
        pattern, workload=wildcards.workload, strategy=CONFIG.strategies
    )


def imported_reports():
    """What the default target makes of the imported runs; two or more are compared."""
    pages = expand("reports/imported/{imported}.md", imported=CONFIG.imported)
    return pages + (["reports/imported/comparison.md"] if len(pages) > 1 else [])


SWEEP = CONFIG.conditions


def swept_runs(wildcards):
    """The runs at all points but the base, whose runs the summary's decision stands for."""
    if SWEEP is None:
        raise WorkflowError(
            "config: no `conditions` section; name the factors to sweep there (config/config.yaml has an example)"
        )
    return [
        f"traces/{point.workload}/{strategy}"
        for point in SWEEP.points.values()
        for strategy in point.strategies
    ]
