rule recorded_trees:
    """Parents of the DDTree and Weaver trees that real rounds of the stack verify."""
    input:
        tree_files,
    output:
        "results/{suite}raw/recorded_trees.jsonl",
    log:
        "logs/{suite}recorded_trees.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=family_version("measure.recorded_trees"),
        settings=tree_params,
    script:
        "scripts/recorded_trees.py"


rule kernel_cell:
    """Time every kernel arm on every problem, in one process."""
    input:
        "results/{suite}raw/recorded_trees.jsonl",
    output:
        "results/{suite}raw/kernels.jsonl",
    log:
        "logs/{suite}kernel_cell.log",
    benchmark:
        "logs/{suite}kernel_cell.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=family_version("measure.kernels"),
        settings=kernel_params,
    script:
        "scripts/kernel_cell.py"


rule kernel_table:
    """One row per problem, arm and phase."""
    input:
        "results/{suite}raw/kernels.jsonl",
    output:
        "results/{suite}gdn_verify.csv",
    log:
        "logs/{suite}kernel_table.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("measure.kernel_records"),
    script:
        "scripts/kernel_table.py"


rule table_gdn_verify:
    """Fused verification against every recurrence of its implementation, beside the paper's figures."""
    input:
        "results/{suite}gdn_verify.csv",
        checked="results/{suite}checks/roofline.csv",
    output:
        csv="results/{suite}tables/gdn_verify.csv",
        markdown="results/{suite}tables/gdn_verify.md",
        latex="results/{suite}tables/gdn_verify.tex",
    log:
        "logs/{suite}table_gdn_verify.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.gdn_verify"),
        format=family_version("report.tables"),
    script:
        "scripts/table_gdn_verify.py"


rule figure_gdn_verify_latency:
    """Verification with its commit against nodes, every arm with its limit."""
    input:
        "results/{suite}gdn_verify.csv",
        checked="results/{suite}checks/roofline.csv",
    output:
        csv="results/{suite}figures/gdn_verify_latency.csv",
        pdf="figures/{suite}gdn_verify_latency.pdf",
        png="figures/{suite}gdn_verify_latency.png",
    log:
        "logs/{suite}figure_gdn_verify_latency.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.gdn_verify_latency"),
        selection=family_version("report.gdn_verify"),
    script:
        "scripts/figure_gdn_verify_latency.py"


rule figure_gdn_verify_speedup:
    """Speedup of fused verification over every recurrence, with and without commit."""
    input:
        "results/{suite}gdn_verify.csv",
        checked="results/{suite}checks/roofline.csv",
    output:
        csv="results/{suite}figures/gdn_verify_speedup.csv",
        pdf="figures/{suite}gdn_verify_speedup.pdf",
        png="figures/{suite}gdn_verify_speedup.png",
    log:
        "logs/{suite}figure_gdn_verify_speedup.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.gdn_verify_speedup"),
        selection=family_version("report.gdn_verify"),
    script:
        "scripts/figure_gdn_verify_speedup.py"


rule figure_gdn_state_memory:
    """What a layer keeps from verification to its commit."""
    input:
        "results/{suite}gdn_verify.csv",
        checked="results/{suite}checks/roofline.csv",
    output:
        csv="results/{suite}figures/gdn_state_memory.csv",
        pdf="figures/{suite}gdn_state_memory.pdf",
        png="figures/{suite}gdn_state_memory.png",
    log:
        "logs/{suite}figure_gdn_state_memory.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.gdn_state_memory"),
        selection=family_version("report.gdn_verify"),
    script:
        "scripts/figure_gdn_state_memory.py"
