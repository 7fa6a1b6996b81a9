rule report:
    input:
        decisions=expand(
            "reports/data/{workload}/decision.json", workload=CONFIG.workloads
        ),
        attributions=expand(
            "reports/data/{workload}/{strategy}",
            workload=CONFIG.workloads,
            strategy=CONFIG.strategies,
        ),
    output:
        summary=report(
            "reports/summary.md", category="Report", caption="../report/summary.rst"
        ),
        chinese=report(
            "reports/summary.zh.md",
            category="Report",
            caption="../report/summary.zh.rst",
        ),
        evidence=report(
            "reports/evidence.md", category="Report", caption="../report/evidence.rst"
        ),
        figures=directory("reports/figures"),
    log:
        "logs/report.log",
    benchmark:
        "benchmarks/report.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("report"),
        strategies=CONFIG.strategies,
        imported=[] if CONFIG.workloads else list(CONFIG.imported),
    script:
        "../../scripts/render.py"
