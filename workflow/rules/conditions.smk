# Not part of the summary: made on demand, as `snakemake --cores 4 reports/conditions.md`.
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


rule sweep:
    input:
        points=swept_runs,
        base=expand(
            "traces/{workload}/{strategy}",
            workload=[SWEEP.base.workload] if SWEEP else [],
            strategy=SWEEP.base.strategies if SWEEP else [],
        ),
        decision=expand(
            "reports/data/{workload}/decision.json",
            workload=[SWEEP.base.workload] if SWEEP else [],
        ),
    output:
        "reports/data/conditions.json",
    log:
        "logs/sweep.log",
    benchmark:
        "benchmarks/sweep.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("selection"),
        sweep=repr(SWEEP),
    script:
        "../../scripts/sweep.py"


rule conditions:
    input:
        "reports/data/conditions.json",
    output:
        english=report(
            "reports/conditions.md",
            category="Report",
            caption="../report/conditions.rst",
        ),
        chinese=report(
            "reports/conditions.zh.md",
            category="Report",
            caption="../report/conditions.zh.rst",
        ),
        figures=directory("reports/conditions"),
    log:
        "logs/conditions.log",
    benchmark:
        "benchmarks/conditions.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("report"),
    script:
        "../../scripts/conditions.py"
