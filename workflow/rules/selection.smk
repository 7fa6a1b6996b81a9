rule decide:
    input:
        runs=of_workload("traces/{workload}/{strategy}"),
        attributions=of_workload("reports/data/{workload}/{strategy}"),
        checked=of_workload("reports/data/{workload}/checked/{strategy}"),
    output:
        "reports/data/{workload}/decision.json",
    log:
        "logs/{workload}/decide.log",
    benchmark:
        "benchmarks/{workload}/decide.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("selection"),
        strategies=CONFIG.strategies,
        constraints=lambda wildcards: repr(CONFIG.constraints_of(wildcards.workload)),
    script:
        "../../scripts/decide.py"
