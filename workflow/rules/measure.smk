rule reference:
    input:
        lambda wildcards: CONFIG.spec_of(wildcards.workload).data or [],
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
        digest=lambda wildcards: provenance.measuring_digest(
            "single", workload=CONFIG.spec_of(wildcards.workload)
        ),
        workload=lambda wildcards: repr(CONFIG.spec_of(wildcards.workload)),
        measure=lambda wildcards: repr(CONFIG.settings_of(wildcards.workload)),
    script:
        "../../scripts/reference.py"


rule measure:
    input:
        reference="traces/{workload}/reference.npz",
    output:
        # update() keeps the earlier result until the new one is whole, and restores it when the job dies.
        update(directory("traces/{workload}/{strategy}")),
    log:
        "logs/{workload}/{strategy}.measure.log",
    benchmark:
        "benchmarks/{workload}/{strategy}.measure.tsv"
    # Before all that can share the cores.
    priority: 10
    conda:
        "../../environment.yml"
    # All cores: nothing else may run while times are taken.
    threads: workflow.cores
    params:
        depends=measuring_params,
    script:
        "../../scripts/measure.py"


onstart:
    # An interrupted run leaves Snakemake's copy of an earlier result behind, and Snakemake cannot copy over it. The
    # outputs of these jobs are locked by now, so no other run needs the copies.
    for job in workflow.dag.needrun_jobs():
        for path in job.output:
            workflow.persistence.cleanup_backup(Path(path))
