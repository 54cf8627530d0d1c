rule latency_cell:
    """Rounds of the engine at real shapes with random weights, in one process."""
    output:
        "results/{suite}raw/latency_27b.jsonl",
    log:
        "logs/{suite}latency_cell.log",
    benchmark:
        "logs/{suite}latency_cell.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=family_version("measure.latency"),
        settings=latency_params,
    script:
        "scripts/latency_cell.py"


rule latency_table:
    """One row per arm and stage."""
    input:
        "results/{suite}raw/latency_27b.jsonl",
    output:
        "results/{suite}latency_27b.csv",
    log:
        "logs/{suite}latency_table.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("measure.latency_records"),
    script:
        "scripts/latency_table.py"


rule table_latency:
    """Stages of a round, an arm per line, and the speedup that recorded acceptance projects to."""
    input:
        latency="results/{suite}latency_27b.csv",
        acceptance=lambda wildcards: engine_config(wildcards).latency.acceptance,
    output:
        csv=report("results/{suite}tables/latency_27b.csv", caption="report/latency_27b.rst", category="Latency"),
        markdown="results/{suite}tables/latency_27b.md",
        latex="results/{suite}tables/latency_27b.tex",
    log:
        "logs/{suite}table_latency.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.latency"),
        format=family_version("report.tables"),
    script:
        "scripts/table_latency.py"


rule figure_latency_27b:
    """Stacked round times, projected speedups hatched."""
    input:
        latency="results/{suite}latency_27b.csv",
        table="results/{suite}tables/latency_27b.csv",
    output:
        csv="results/{suite}figures/latency_27b.csv",
        pdf="figures/{suite}latency_27b.pdf",
        png=report("figures/{suite}latency_27b.png", caption="report/latency_27b.rst", category="Latency"),
    log:
        "logs/{suite}figure_latency_27b.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.latency_27b"),
    script:
        "scripts/figure_latency_27b.py"
