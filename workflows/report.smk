rule figure_speedup_by_dataset:
    """Speedup over plain decoding per dataset, each method at the budget that was fastest on dev."""
    input:
        decode="results/{suite}decode.csv",
        headline="results/{suite}tables/headline.csv",
    output:
        csv="results/{suite}figures/speedup_by_dataset.csv",
        pdf="figures/{suite}speedup_by_dataset.pdf",
        png="figures/{suite}speedup_by_dataset.png",
    log:
        "logs/{suite}figure_speedup_by_dataset.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.speedup_by_dataset"),
    script:
        "scripts/figure_speedup_by_dataset.py"


rule figure_acceptance_by_budget:
    """Acceptance length against node budget, one line per method, chain as reference."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}figures/acceptance_by_budget.csv",
        pdf="figures/{suite}acceptance_by_budget.pdf",
        png="figures/{suite}acceptance_by_budget.png",
    log:
        "logs/{suite}figure_acceptance_by_budget.log",
    conda:
        "../environment.yml"
    params:
        version=[
            family_version(name)
            for name in ("report.figures.acceptance_by_budget", "report.arms", "measure.statistics")
        ],
    script:
        "scripts/figure_acceptance_by_budget.py"


rule figure_speedup_by_budget:
    """Speedup over plain decoding against node budget, one line per method, with the noise of the machine."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}figures/speedup_by_budget.csv",
        pdf="figures/{suite}speedup_by_budget.pdf",
        png="figures/{suite}speedup_by_budget.png",
    log:
        "logs/{suite}figure_speedup_by_budget.log",
    conda:
        "../environment.yml"
    params:
        version=[
            family_version(name) for name in ("report.figures.speedup_by_budget", "report.arms", "measure.statistics")
        ],
    script:
        "scripts/figure_speedup_by_budget.py"


rule figure_acceptance_by_depth:
    """Share of rounds that accept at least so many drafts, every method equally wide."""
    input:
        decode="results/{suite}decode.csv",
        rounds=companion_files,
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}figures/acceptance_by_depth.csv",
        pdf="figures/{suite}acceptance_by_depth.pdf",
        png="figures/{suite}acceptance_by_depth.png",
    log:
        "logs/{suite}figure_acceptance_by_depth.log",
    conda:
        "../environment.yml"
    params:
        version=[
            family_version(name)
            for name in (
                "report.figures.acceptance_by_depth",
                "report.round_shares",
                "report.arms",
                "measure.statistics",
            )
        ],
    script:
        "scripts/figure_acceptance_by_depth.py"


rule figure_accepted_length_histogram:
    """Rounds by the drafts that they accept, every method equally wide."""
    input:
        decode="results/{suite}decode.csv",
        rounds=companion_files,
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}figures/accepted_length_histogram.csv",
        pdf="figures/{suite}accepted_length_histogram.pdf",
        png="figures/{suite}accepted_length_histogram.png",
    log:
        "logs/{suite}figure_accepted_length_histogram.log",
    conda:
        "../environment.yml"
    params:
        version=[
            family_version(name)
            for name in (
                "report.figures.accepted_length_histogram",
                "report.round_shares",
                "report.arms",
                "measure.statistics",
            )
        ],
    script:
        "scripts/figure_accepted_length_histogram.py"


rule figure_stage_times:
    """Where the time of a round goes, each method at the budget that was fastest on dev."""
    input:
        decode="results/{suite}decode.csv",
        stage_times="results/{suite}tables/stage_times.csv",
        headline="results/{suite}tables/headline.csv",
    output:
        csv="results/{suite}figures/stage_times.csv",
        pdf="figures/{suite}stage_times.pdf",
        png="figures/{suite}stage_times.png",
    log:
        "logs/{suite}figure_stage_times.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.stage_times"),
    script:
        "scripts/figure_stage_times.py"


rule figure_noise_floor:
    """Plain decoding against itself: what the machine shows between two runs of the same code."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}figures/noise_floor.csv",
        pdf="figures/{suite}noise_floor.pdf",
        png="figures/{suite}noise_floor.png",
    log:
        "logs/{suite}figure_noise_floor.log",
    conda:
        "../environment.yml"
    params:
        version=[family_version(name) for name in ("report.figures.noise_floor", "report.arms", "measure.statistics")],
    script:
        "scripts/figure_noise_floor.py"


rule example_tree:
    """One telling round of a real generation, node by node."""
    input:
        example_files,
    output:
        "results/{suite}example_tree.csv",
    log:
        "logs/{suite}example_tree.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=family_version("measure.example_tree"),
        settings=example_params,
    script:
        "scripts/example_tree.py"


rule figure_example_tree:
    """A draft tree with its tokens, probabilities and accepted path."""
    input:
        "results/{suite}example_tree.csv",
    output:
        csv="results/{suite}figures/example_tree.csv",
        pdf="figures/{suite}example_tree.pdf",
        png="figures/{suite}example_tree.png",
    log:
        "logs/{suite}figure_example_tree.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.figures.example_tree"),
    script:
        "scripts/figure_example_tree.py"
