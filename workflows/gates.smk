from snakemake.io import regex_from_filepattern, strip_wildcard_constraints


rule regression:
    """This run against a stored one: snakemake regression --config baseline=PATH; exit code 1 means worse, 2 no comparison."""

    # No output: it runs whenever it is asked for, and Snakemake would remove the table of a run that is worse.
    input:
        compared_files,
    log:
        "logs/regression.log",
    conda:
        "../environment.yml"
    params:
        baseline=config.get("baseline"),
        table="results/tables/regression.csv",
    script:
        "scripts/regression.py"


rule estimate:
    """Time, peak memory and disk of what reproduce_all would measure, from earlier runs, a pilot or the committed run."""
    log:
        "logs/estimate.log",
    conda:
        "../environment.yml"
    # A pilot measures: nothing else may run beside it.
    threads: workflow.cores
    params:
        # What measures takes the GPU. By its rule: what its first output looks like, and its benchmark file.
        measuring=lambda _: {
            rule.name: (
                regex_from_filepattern(str(next(iter(rule.output)))),
                strip_wildcard_constraints(str(rule.benchmark)) if rule.benchmark else None,
            )
            for rule in workflow.rules
            if "gpu" in rule.resources
        },
    script:
        "scripts/estimate.py"


# Snakemake exits with 1 for every job that fails. Where a baseline is given, 1 is kept for its verdict.
onstart:
    # What measures has a benchmark file, and nothing else has one.
    planned = [str(job.benchmark) for job in workflow.dag.needrun_jobs() if job.benchmark is not None]
    write_plan(planned)
    if "baseline" in config:
        Path("results/tables/regression.csv").unlink(missing_ok=True)


onerror:
    if "baseline" in config and not is_regression(Path("results/tables/regression.csv")):
        sys.exit(EXIT_TOOL_ERROR)


rule check_expected:
    """Which figures of this run moved beyond their intervals against results/expected."""

    # No input: it compares what is there, so that another machine's run is not made anew to be looked at.
    log:
        "logs/check_expected.log",
    conda:
        "../environment.yml"
    params:
        table="results/checks/expected.csv",
    script:
        "scripts/check_expected.py"
