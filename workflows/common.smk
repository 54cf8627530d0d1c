"""Helper functions of the rules; no rule stands here."""

from tfm_bench.ablation_config import ABLATIONS
from tfm_bench.ablations import CELLS, PROBED, ablation_points, probe_settings
from tfm_bench.config import (
    cell_settings,
    control_files,
    kernel_settings,
    require_dev_split,
    splits_of,
    stack_files,
    tree_settings,
)
from tfm_bench.errors import EXIT_TOOL_ERROR, UserError
from tfm_bench.example_config import example_settings
from tfm_bench.measure.rounds import rounds_path
from tfm_bench.measure.plan import write_plan
from tfm_bench.measure.versions import family_version

TABLES = ("headline", "speedup", "acceptance_ratio", "stage_times")
KERNEL_TABLES = ("gdn_verify",)
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


def suite_outputs(suite):
    """Everything that a run of the suite leaves."""
    ablations = [file for name in CONFIGS[suite].ablations.run for file in ablation_outputs(suite, name)]
    figures = [name for category, names in FIGURES.items() if category != "Kernels" for name in names]
    files = [f"results/{suite}decode.csv", f"results/{suite}report.html", *shown(suite, TABLES, figures)]
    return [*files, *kernel_outputs(suite), *ablations]


def ablation_outputs(suite, ablation):
    """What one ablation leaves."""
    name = f"ablation_{ablation}"
    files = [f"results/{suite}{name}.csv", f"figures/{suite}{name}.pdf", f"figures/{suite}{name}.png"]
    return [*files, *(f"results/{suite}tables/{name}.{suffix}" for suffix in ("md", "tex"))]


def ablation_raw(wildcards):
    """Records of an ablation: of its cells, of its probe, or of both."""
    raw = f"results/{wildcards.suite}raw/ablations/{wildcards.ablation}"
    kinds = {"decode": f"{raw}.jsonl"} if wildcards.ablation in CELLS else {}
    return kinds | ({"probe": f"{raw}.probe.jsonl"} if wildcards.ablation in PROBED else {})


def ablation_files(wildcards):
    """Checkpoint and prompt files that an ablation reads."""
    config = CONFIGS[wildcards.suite]
    try:
        read = dict.fromkeys([config.ablations.dataset, *config.ablations.ceiling.datasets])
        files = [
            file
            for dataset in read
            for split in splits_of(config.stack, dataset)
            for file in stack_files(config.stack, dataset=dataset, split=split)
        ]
    except UserError as error:
        stop(error)
    return [*dict.fromkeys(files), *control_files(config.stack)]


def claims_inputs(wildcards):
    """Where claims are measured, by the names of tfm_bench.report.claim_measures."""
    results = f"results/{wildcards.suite}"
    files = {
        "decode": f"{results}decode.csv",
        "headline": f"{results}tables/headline.csv",
        "acceptance_ratio": f"{results}tables/acceptance_ratio.csv",
        "gdn_verify": f"{results}gdn_verify.csv",
        "claims_probe": f"{results}raw/claims.jsonl",
        "checked": f"{results}checks/roofline.csv",
    }
    if "ceiling" in CONFIGS[wildcards.suite].ablations.run:
        files["ablation_ceiling"] = f"{results}ablation_ceiling.csv"
    return files


def claims_params(wildcards):
    """The slice of the configuration that watching rounds depends on."""
    return probe_settings(CONFIGS[wildcards.suite], "claims").model_dump()


def ablation_params(wildcards):
    """The cells of an ablation."""
    points = ablation_points(CONFIGS[wildcards.suite], wildcards.ablation)
    return {name: settings.model_dump() for name, settings in points.items()}


def probe_params(wildcards):
    """The slice of the configuration that a probe depends on."""
    return probe_settings(CONFIGS[wildcards.suite], wildcards.ablation).model_dump()


def probe_versions(wildcards):
    """Raised where what a probe measures changes."""
    return [family_version(f"measure.probes.{wildcards.ablation}"), family_version("measure.probe_records")]


def ablation_versions(wildcards):
    """Raised where a table or figure changes."""
    shared = ("report.ablation_rows", "report.arms", "report.tables", "measure.statistics", "measure.invariants")
    return [family_version(name) for name in (f"report.ablations.{wildcards.ablation}", *shared)]


def kernel_outputs(suite):
    """What the kernel benchmark leaves."""
    files = [f"results/{suite}gdn_verify.csv", f"results/{suite}checks/roofline.csv"]
    return [*files, *shown(suite, KERNEL_TABLES, FIGURES["Kernels"])]


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


def rounds_files(wildcards):
    """What every round of these cells did."""
    return [str(rounds_path(Path(file))) for file in raw_files(wildcards)]


def cell_files(wildcards):
    """Checkpoint and prompt files of a cell. Only a target that decodes asks for them: retrain runs without."""
    stack = CONFIGS[wildcards.suite].stack
    try:
        return stack_files(stack, dataset=wildcards.dataset, split=wildcards.split)
    except UserError as error:
        stop(error)


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
        stop(error)
    return list(dict.fromkeys(files))


def tree_params(wildcards):
    """The slice of the configuration that recorded trees depend on."""
    return tree_settings(CONFIGS[wildcards.suite]).model_dump()


def example_files(wildcards):
    """Checkpoint and prompt files that the example tree comes from."""
    config = CONFIGS[wildcards.suite]
    settings = example_settings(config)
    try:
        return stack_files(config.stack, dataset=settings.dataset, split=settings.split)
    except UserError as error:
        stop(error)


def example_params(wildcards):
    """The slice of the configuration that the example tree depends on."""
    return example_settings(CONFIGS[wildcards.suite]).model_dump()


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
    kernels = ["results/gdn_verify.csv", "results/checks/roofline.csv"] if baseline.kernels is not None else []
    return ["results/decode.csv", "results/checks/invariants.csv", *kernels]


def is_regression(table):
    """Whether a comparison was made and says that this run is worse."""
    from tfm_bench.measure.regression import has_regression, read_regression

    return table.exists() and has_regression(read_regression(table))
