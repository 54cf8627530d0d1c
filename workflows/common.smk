"""Helper functions of the rules; no rule stands here."""

from tfm_bench.config import cell_settings, kernel_settings, require_dev_split, splits_of, stack_files, tree_settings
from tfm_bench.measure.versions import family_version

TABLES = ("speedup", "headline", "acceptance_ratio", "stage_times")
FIGURES = ("speedup_by_dataset", "acceptance_by_budget")
KERNEL_TABLES = ("gdn_verify",)
KERNEL_FIGURES = ("gdn_verify_latency", "gdn_verify_speedup", "gdn_state_memory")


def suite_outputs(suite):
    """Everything that a run of the suite leaves."""
    return [f"results/{suite}decode.csv", *shown(suite, TABLES, FIGURES), *kernel_outputs(suite)]


def kernel_outputs(suite):
    """What the kernel benchmark leaves."""
    return [f"results/{suite}gdn_verify.csv", *shown(suite, KERNEL_TABLES, KERNEL_FIGURES)]


def shown(suite, tables, figures):
    """Files of these tables and figures."""
    return [
        *expand("results/{suite}tables/{table}.{suffix}", suite=suite, table=tables, suffix=["csv", "md", "tex"]),
        *expand("figures/{suite}{figure}.{suffix}", suite=suite, figure=figures, suffix=["pdf", "png"]),
    ]


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


def tree_files(wildcards):
    """Checkpoint and dev prompt files that recorded trees come from."""
    config = CONFIGS[wildcards.suite]
    try:
        files = [
            file
            for dataset in config.kernels.recorded.datasets
            for file in stack_files(config.stack, dataset=dataset, split="dev")
        ]
    except UserError as error:
        sys.exit(str(error))
    return list(dict.fromkeys(files))


def tree_params(wildcards):
    """The slice of the configuration that recorded trees depend on."""
    return tree_settings(CONFIGS[wildcards.suite]).model_dump()


def kernel_params(wildcards):
    """The slice of the configuration that the kernel benchmark depends on."""
    return kernel_settings(CONFIGS[wildcards.suite]).model_dump()


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
