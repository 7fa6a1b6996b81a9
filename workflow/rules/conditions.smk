# Not part of the summary: made on demand, as `snakemake --cores 4 reports/conditions.md`.
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
