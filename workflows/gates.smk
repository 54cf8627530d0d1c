from snakemake.io import regex_from_filepattern, strip_wildcard_constraints

from tfm_bench.preflight import preflight


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
        folder=f"results/{RUN}",
        table=f"results/{RUN}tables/regression.csv",
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
    jobs = list(workflow.dag.needrun_jobs())
    prepared = {job.wildcards.dataset: None for job in jobs if job.rule.name == "prepare_dataset"}
    try:
        preflight(
            CONFIGS[RUN], read_pins(Path("config/datasets.yaml")), {job.rule.name for job in jobs}, list(prepared)
        )
    except UserError as error:
        stop(error)
    # What measures has a benchmark file, and nothing else has one.
    write_plan(str(job.benchmark) for job in jobs if job.benchmark is not None)
    if "baseline" in config:
        Path(f"results/{RUN}tables/regression.csv").unlink(missing_ok=True)


onerror:
    if "baseline" in config and not is_regression(Path(f"results/{RUN}tables/regression.csv")):
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
