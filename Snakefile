from snakemake.utils import min_version

min_version("9.1")


include: "workflow/rules/configuration.smk"


# A --configfile replaces the default one; Snakemake alone would merge their workloads.
if not workflow.config_settings.configfiles:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/attribution.smk"
include: "workflow/rules/view.smk"
include: "workflow/rules/selection.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/conditions.smk"
include: "workflow/rules/imported.smk"


rule all:
    default_target: True
    input:
        # Without workloads a measured report may lie here from another configuration: left alone.
        "reports/summary.md" if CONFIG.workloads else [],
        imported_reports(),
