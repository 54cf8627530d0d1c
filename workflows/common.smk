"""Helper functions of the rules; no rule stands here."""

from tfm_bench.backends.request_log import requests_path
from tfm_bench.backends.settings import ServerConfig, server_cell_settings, weaver_files
from tfm_bench.config import cell_settings, kernel_settings, latency_settings, tree_settings
from tfm_bench.errors import EXIT_TOOL_ERROR, UserError
from tfm_bench.example_config import example_settings
from tfm_bench.measure.plan import write_plan
from tfm_bench.measure.rounds import rounds_path
from tfm_bench.measure.versions import family_version
from tfm_bench.prompts.pins import read_pins
from tfm_bench.stack_files import is_prepared, part_files, prompt_files, require_dev_split, splits_of, stack_files

TABLES = ("headline", "speedup", "acceptance_ratio", "stage_times")
KERNEL_TABLES = ("gdn_verify",)
# Servers time no stages, and give sums of their rounds, not the rounds.
SERVER_TABLES = ("headline", "speedup", "acceptance_ratio", "protocols")
SERVER_FIGURES = ("speedup_by_dataset", "speedup_by_budget", "acceptance_by_budget", "noise_floor")
# By category of report.html, in its order.
FIGURES = {
    "Speedup": ("speedup_by_dataset", "speedup_by_budget"),
    "Acceptance": ("acceptance_by_budget", "acceptance_by_depth", "accepted_length_histogram"),
    "Stage times": ("stage_times",),
    "Kernels": ("gdn_verify_latency", "gdn_verify_speedup", "gdn_state_memory"),
    "Ablations": (),  # those that the configuration lists
    "Noise": ("noise_floor",),
    "Example": ("example_tree",),
}


def stop(error, code=1):
    """End with one line on the terminal. Where a baseline is given, 1 means a regression: then the exit code is 2."""
    print(error, file=sys.stderr)
    sys.exit(EXIT_TOOL_ERROR if "baseline" in config else code)


def dataset_pin(wildcards):
    """The commit that a data set is read at: the slice of config/datasets.yaml that its prompts depend on."""
    try:
        return read_pins(Path("config/datasets.yaml")).model_dump(include={wildcards.dataset})
    except UserError as error:
        stop(error)


def is_served(suite):
    """Whether servers decode, and not the engine."""
    return isinstance(CONFIGS[suite], ServerConfig)


def engine_config(wildcards):
    """The configuration of what only the engine can measure."""
    if is_served(wildcards.suite):
        stop(
            f"sglang: {CONFIGS[wildcards.suite].stack.name} is served; this target accepts a stack that the engine decodes"
        )
    return CONFIGS[wildcards.suite]


def suite_outputs(suite):
    """Everything that a run of the suite leaves."""
    ablations = [file for name in run_ablations(suite) for file in ablation_outputs(suite, name)]
    figures = [name for category, names in run_figures(suite).items() if category != "Kernels" for name in names]
    files = [f"results/{suite}decode.csv", f"results/{suite}report.html", *shown(suite, decode_tables(suite), figures)]
    return [*files, *(kernel_outputs(suite) if measures_kernels(suite) else []), *ablations]


def run_ablations(suite):
    """Those that the configuration lists."""
    return [] if is_served(suite) else CONFIGS[suite].ablations.run


def measures_kernels(suite):
    """Whether the run has the kernel benchmark in it."""
    return not is_served(suite) and CONFIGS[suite].measures_kernels


def decode_tables(suite):
    """Tables that come from decoding."""
    return SERVER_TABLES if is_served(suite) else TABLES


def run_figures(suite):
    """Figures of the run by category, in the order of the page."""
    left_out = set() if measures_kernels(suite) else set(FIGURES["Kernels"])
    if is_served(suite):
        left_out = {name for names in FIGURES.values() for name in names} - set(SERVER_FIGURES)
    elif not CONFIGS[suite].stack.has_weaver:
        left_out |= set(FIGURES["Example"])  # it is a tree of Weaver
    ablations = tuple(f"ablation_{name}" for name in run_ablations(suite))
    kept = {category: tuple(name for name in names if name not in left_out) for category, names in FIGURES.items()}
    return kept | {"Ablations": ablations}


def kernel_outputs(suite):
    """What the kernel benchmark leaves."""
    files = [f"results/{suite}gdn_verify.csv", f"results/{suite}checks/roofline.csv"]
    return [*files, *shown(suite, KERNEL_TABLES, FIGURES["Kernels"])]


def wanted_kernels(wildcards):
    """What `snakemake kernel_benchmark` makes."""
    if not measures_kernels(RUN):
        stop(f"kernel_benchmark: {CONFIGS[RUN].stack.name} has no Gated-DeltaNet layers that the engine verifies")
    return kernel_outputs(RUN)


def latency_outputs(suite):
    """What the latency benchmark leaves."""
    return [f"results/{suite}latency_27b.csv", *shown(suite, ["latency_27b"], ["latency_27b"])]


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
        require_dev_split(config.stack, config.datasets)
    except UserError as error:
        stop(error)
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


def companion_files(wildcards):
    """What stands beside the records of these cells: their rounds, or the requests that servers answered."""
    companion = requests_path if is_served(wildcards.suite) else rounds_path
    return [str(companion(Path(file))) for file in raw_files(wildcards)]


def server_files(wildcards):
    """What a server cell reads of the stack's folder: prompts, and Weaver where an arm needs it."""
    config = CONFIGS[wildcards.suite]
    try:
        prompts = prompt_files(config.stack, dataset=wildcards.dataset, split=wildcards.split)
        return [*prompts, *(weaver_files(config.stack) if "tfm" in config.methods else [])]
    except UserError as error:
        stop(error)


def fetched_files(suite):
    """What a run of the suite downloads or prepares."""
    config = CONFIGS[suite]
    stack = config.stack
    prepared = [name for name in config.datasets if is_prepared(stack, name)]
    prompts = [
        file
        for dataset in prepared
        for split in splits_of(stack, dataset)
        for file in prompt_files(stack, dataset=dataset, split=split)
    ]
    if is_served(suite):
        return [*prompts, *(weaver_files(stack) if "tfm" in config.methods else [])]
    return [*prompts, *(part_files(stack) if stack.parts is not None else [])]


def server_params(wildcards):
    """The slice of the configuration that a server cell depends on."""
    return cell_slice(server_cell_settings, wildcards)


def cell_files(wildcards):
    """Checkpoint and prompt files of a cell. Only a target that decodes asks for them: retrain runs without."""
    stack = CONFIGS[wildcards.suite].stack
    try:
        return stack_files(stack, dataset=wildcards.dataset, split=wildcards.split)
    except UserError as error:
        stop(error)


def tree_files(wildcards):
    """Checkpoint and dev prompt files that recorded trees come from."""
    config = engine_config(wildcards)
    try:
        files = [
            file
            for dataset in config.kernels.recorded.datasets
            for file in stack_files(config.stack, dataset=dataset, split="dev")
        ]
    except UserError as error:
        stop(error)
    return list(dict.fromkeys(files))


def tree_params(wildcards):
    """The slice of the configuration that recorded trees depend on."""
    return tree_settings(engine_config(wildcards)).model_dump()


def example_files(wildcards):
    """Checkpoint and prompt files that the example tree comes from."""
    config = engine_config(wildcards)
    settings = example_settings(config)
    try:
        return stack_files(config.stack, dataset=settings.dataset, split=settings.split)
    except UserError as error:
        stop(error)


def example_params(wildcards):
    """The slice of the configuration that the example tree depends on."""
    return example_settings(engine_config(wildcards)).model_dump()


def kernel_params(wildcards):
    """The slice of the configuration that the kernel benchmark depends on."""
    return kernel_settings(engine_config(wildcards)).model_dump()


def latency_params(wildcards):
    """The slice of the configuration that the latency benchmark depends on."""
    return latency_settings(engine_config(wildcards)).model_dump()


def cell_params(wildcards):
    """The slice of the configuration that a cell depends on."""
    return cell_slice(cell_settings, wildcards)


def cell_slice(settings_of, wildcards):
    """What `settings_of` a configuration makes for the cell that these wildcards name."""
    settings = settings_of(
        CONFIGS[wildcards.suite],
        split=wildcards.split,
        dataset=wildcards.dataset,
        temperature_hundredths=int(wildcards.temperature),
        repeat=int(wildcards.repeat),
    )
    return settings.model_dump()


def compared_files(wildcards):
    """What a regression run needs of this run. The baseline is checked here: before anything is measured."""
    from tfm_bench.measure.stored_run import read_run

    if "baseline" not in config:
        stop("regression: no baseline; --config baseline=PATH takes a decode.csv or its folder", EXIT_TOOL_ERROR)
    try:
        baseline = read_run(Path(str(config["baseline"])))
    except UserError as error:
        stop(error)
    # With their checks: impossible numbers are no side of a comparison.
    names = ["decode.csv", "checks/invariants.csv"]
    names += ["gdn_verify.csv", "checks/roofline.csv"] if baseline.kernels is not None else []
    return [f"results/{RUN}{name}" for name in names]


def is_regression(table):
    """Whether a comparison was made and says that this run is worse."""
    from tfm_bench.measure.regression import has_regression, read_regression

    return table.exists() and has_regression(read_regression(table))
