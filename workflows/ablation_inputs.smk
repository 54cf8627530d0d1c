"""What ablations and claims are made from; no rule stands here."""

from tfm_bench.ablation_config import ABLATIONS
from tfm_bench.ablations import CELLS, PROBED, ablation_points, probe_settings
from tfm_bench.stack_files import control_files, splits_of, stack_files


def wanted_ablation(ablation):
    """What `snakemake ablation_...` makes, as an input function: only what is asked for is refused."""

    def files(wildcards):
        if is_served(RUN):
            stop(
                f"ablation_{ablation}: {CONFIGS[RUN].stack.name} is served; a stack that the engine decodes is accepted"
            )
        try:
            CONFIGS[RUN].require_parts([ablation])
        except ValueError as error:
            stop(error)
        return ablation_outputs(RUN, ablation)

    return files


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
    config = engine_config(wildcards)
    name, own = getattr(wildcards, "ablation", None), config.ablations.dataset
    places = [(dataset, "test") for dataset in [own, *(config.ablations.ceiling.datasets if name == "ceiling" else [])]]
    if name == "auto_budget":
        places += [(own, split) for split in splits_of(config.stack, own)]  # budgets are chosen on dev
    try:
        files = [file for dataset, split in places for file in stack_files(config.stack, dataset=dataset, split=split)]
    except UserError as error:
        stop(error)
    return [*dict.fromkeys(files), *control_files(config.stack)]


def ablation_params(wildcards):
    """The cells of an ablation."""
    points = ablation_points(engine_config(wildcards), wildcards.ablation)
    return {name: settings.model_dump() for name, settings in points.items()}


def probe_params(wildcards):
    """The slice of the configuration that a probe depends on."""
    return probe_settings(engine_config(wildcards), wildcards.ablation).model_dump()


def probe_versions(wildcards):
    """Raised where what a probe measures changes."""
    return [family_version(f"measure.probes.{wildcards.ablation}"), family_version("measure.probe_records")]


def ablation_versions(wildcards):
    """Raised where a table or figure changes."""
    shared = ("report.ablation_rows", "report.arms", "report.tables", "measure.statistics", "measure.invariants")
    return [family_version(name) for name in (f"report.ablations.{wildcards.ablation}", *shared)]


def claims_inputs(wildcards):
    """Where claims are measured, by the names of tfm_bench.report.claim_measures."""
    results = f"results/{wildcards.suite}"
    files = {
        "decode": f"{results}decode.csv",
        "headline": f"{results}tables/headline.csv",
        "acceptance_ratio": f"{results}tables/acceptance_ratio.csv",
    }
    if measures_kernels(wildcards.suite):
        files |= {"gdn_verify": f"{results}gdn_verify.csv", "checked": f"{results}checks/roofline.csv"}
    if watches_claims(wildcards.suite):
        files["claims_probe"] = f"{results}raw/claims.jsonl"
    if "ceiling" in run_ablations(wildcards.suite):
        files["ablation_ceiling"] = f"{results}ablation_ceiling.csv"
    return files


def watches_claims(suite):
    """Whether rounds are those that the paper makes claims about."""
    return not is_served(suite) and CONFIGS[suite].watches_claims


def claims_params(wildcards):
    """The slice of the configuration that watching rounds depends on."""
    return probe_settings(engine_config(wildcards), "claims").model_dump()
