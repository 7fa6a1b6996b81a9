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
            "reports/summary.md",
            category="Report",
            labels={"document": "summary", "language": "English"},
            caption="../report/summary.rst",
        ),
        chinese=report(
            "reports/summary.zh.md",
            category="Report",
            labels={"document": "summary", "language": "中文"},
            caption="../report/summary.zh.rst",
        ),
        page=report(
            "reports/summary.html",
            category="Report",
            labels={
                "document": "summary with drawings",
                "language": "English, 中文",
            },
            caption="../report/page.rst",
        ),
        evidence=report(
            "reports/evidence.md",
            category="Report",
            labels={"document": "evidence", "language": "English"},
            caption="../report/evidence.rst",
        ),
        node=report(
            "reports/node.md",
            category="Report",
            labels={"document": "named hardware, predicted", "language": "English"},
            caption="../report/node.rst",
        ),
        node_chinese=report(
            "reports/node.zh.md",
            category="Report",
            labels={"document": "named hardware, predicted", "language": "中文"},
            caption="../report/node.rst",
        ),
        figures=report(
            directory("reports/figures"),
            patterns=["{figure}.svg"],
            category="Figures",
            labels={"figure": "{figure}"},
            caption="../report/figure.rst",
        ),
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
