rule figure_speedup_by_dataset:
    """Speedup over plain decoding per dataset, each method at the budget that was fastest on dev."""
    input:
        decode="results/{suite}decode.csv",
        headline="results/{suite}tables/headline.csv",
    output:
        csv="results/{suite}figures/speedup_by_dataset.csv",
        pdf="figures/{suite}speedup_by_dataset.pdf",
        png=report("figures/{suite}speedup_by_dataset.png", caption="report/speedup_by_dataset.rst", category="Speedup"),
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
        png=report(
            "figures/{suite}acceptance_by_budget.png",
            caption="report/acceptance_by_budget.rst",
            category="Acceptance",
        ),
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
