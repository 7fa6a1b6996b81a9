# Not part of the report: made on demand, as `snakemake reports/traces/gpt3m/zero3.pftrace.gz`.
rule merge:
    input:
        run="traces/{workload}/{strategy}",
    output:
        "reports/traces/{workload}/{strategy}.pftrace.gz",
    log:
        "logs/{workload}/{strategy}.merge.log",
    benchmark:
        "benchmarks/{workload}/{strategy}.merge.tsv"
    conda:
        "../../environment.yml"
    params:
        digest=provenance.stage_digest("trace", "attribution", "view"),
    script:
        "../../scripts/merge.py"
