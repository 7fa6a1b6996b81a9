rule attribute:
    input:
        run="traces/{workload}/{strategy}",
    output:
        directory("reports/data/{workload}/{strategy}"),
    log:
        "logs/{workload}/{strategy}.attribute.log",
    benchmark:
        "benchmarks/{workload}/{strategy}.attribute.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("trace", "attribution"),
    script:
        "../../scripts/attribute.py"


rule check:
    input:
        run="traces/{workload}/{strategy}",
        attribution="reports/data/{workload}/{strategy}",
    output:
        touch("reports/data/{workload}/checked/{strategy}"),
    log:
        "logs/{workload}/{strategy}.check.log",
    benchmark:
        "benchmarks/{workload}/{strategy}.check.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("selection"),
    script:
        "../../scripts/check.py"
