rule reference:
    input:
        lambda wildcards: CONFIG.workloads[wildcards.workload].data or [],
    output:
        "traces/{workload}/reference.npz",
    log:
        "logs/{workload}/reference.log",
    benchmark:
        "benchmarks/{workload}/reference.tsv"
    conda:
        "../../environment.yml"
    threads: workflow.cores
    params:
        digest=provenance.measuring_digest("single"),
        workload=lambda wildcards: repr(CONFIG.workloads[wildcards.workload]),
        measure=repr(CONFIG.measure),
    script:
        "../../scripts/reference.py"


rule measure:
    input:
        reference="traces/{workload}/reference.npz",
    output:
        # update() keeps the earlier result until the new one is whole, and restores it when the job dies.
        update(
            report(
                directory("traces/{workload}/{strategy}"),
                category="Traces",
                subcategory="{workload}",
            )
        ),
    log:
        "logs/{workload}/{strategy}.measure.log",
    benchmark:
        "benchmarks/{workload}/{strategy}.measure.tsv"
    conda:
        "../../environment.yml"
    # All cores: nothing else may run while times are taken.
    threads: workflow.cores
    params:
        depends=measuring_params,
    script:
        "../../scripts/measure.py"
