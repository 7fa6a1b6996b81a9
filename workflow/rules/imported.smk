rule attribute_imported:
    output:
        directory("reports/imported/data/{imported}"),
    log:
        "logs/imported/{imported}.attribute.log",
    benchmark:
        "benchmarks/imported/{imported}.attribute.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("trace", "attribution"),
        run=lambda wildcards: repr(CONFIG.imported[wildcards.imported]),
        # Not inputs: Snakemake gives <…> and {…} in their names a meaning, and the names are not ours.
        files=lambda wildcards: CONFIG.imported[wildcards.imported].fingerprint(),
    script:
        "../../scripts/attribute_imported.py"


rule report_imported:
    input:
        "reports/imported/data/{imported}",
    output:
        report(
            "reports/imported/{imported}.md",
            category="Imported runs",
            caption="../report/imported.rst",
        ),
        "reports/imported/{imported}.zh.md",
        "reports/imported/figures/{imported}.svg",
    log:
        "logs/imported/{imported}.report.log",
    benchmark:
        "benchmarks/imported/{imported}.report.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("selection", "report"),
        compared=len(CONFIG.imported) > 1,
    script:
        "../../scripts/report_imported.py"


rule compare_imported:
    input:
        expand("reports/imported/data/{imported}", imported=CONFIG.imported),
    output:
        report(
            "reports/imported/comparison.md",
            category="Imported runs",
            caption="../report/comparison.rst",
        ),
        "reports/imported/comparison.zh.md",
        "reports/imported/figures/comparison.svg",
    log:
        "logs/imported/comparison.log",
    benchmark:
        "benchmarks/imported/comparison.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("selection", "report"),
    script:
        "../../scripts/compare_imported.py"
