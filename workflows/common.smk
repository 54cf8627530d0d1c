"""Helper functions of the rules; no rule stands here."""

from tfm_bench.config import cell_settings, require_dev_split, splits_of, stack_files
from tfm_bench.measure.versions import family_version

TABLES = ("speedup", "headline", "acceptance_ratio", "stage_times")
FIGURES = ("speedup_by_dataset", "acceptance_by_budget")


def suite_outputs(suite):
    """Everything that a run of the suite leaves."""
    tables = expand("results/{suite}tables/{table}.{suffix}", suite=suite, table=TABLES, suffix=["csv", "md", "tex"])
    figures = expand("figures/{suite}{figure}.{suffix}", suite=suite, figure=FIGURES, suffix=["pdf", "png"])
    return [f"results/{suite}decode.csv", *tables, *figures]


def raw_files(wildcards):
    """The records of every cell of a suite."""
    config = CONFIGS[wildcards.suite]
    try:
        require_dev_split(config)
    except UserError as error:
        sys.exit(str(error))
    # Dev prompts choose budgets and carry no interval: one process is enough.
    cells = [
        (split, dataset, repeat)
        for dataset in config.datasets
        for split in splits_of(config.stack, dataset)
        for repeat in range(config.repeats if split == "test" else 1)
    ]
    return expand(
        "results/{suite}raw/{cell[0]}.{cell[1]}.t{temperature}.r{cell[2]}.jsonl",
        suite=wildcards.suite,
        cell=cells,
        temperature=[f"{round(temperature * 100):03d}" for temperature in config.temperatures],
    )


def cell_files(wildcards):
    """Checkpoint and prompt files of a cell. Only a target that decodes asks for them: retrain runs without."""
    stack = CONFIGS[wildcards.suite].stack
    try:
        return stack_files(stack, dataset=wildcards.dataset, split=wildcards.split)
    except UserError as error:
        sys.exit(str(error))


def cell_params(wildcards):
    """The slice of the configuration that a cell depends on."""
    settings = cell_settings(
        CONFIGS[wildcards.suite],
        split=wildcards.split,
        dataset=wildcards.dataset,
        temperature_hundredths=int(wildcards.temperature),
        repeat=int(wildcards.repeat),
    )
    return settings.model_dump()
