"""Every configuration that ships: what Snakemake would do, and a run of a stack that has not everything."""

from pathlib import Path

import pandas as pd
import pytest

CONFIG = Path(__file__).parents[2] / "config"
RUNS = sorted(file.name for file in CONFIG.glob("*.yaml") if file.name not in ("smoke.yaml", "datasets.yaml"))
# Per stack: downloaded parts, prompt files, cells, jobs on kernels.
PLANNED = {
    "qwen3-4b.yaml": (2, 9, 7 * 2 * 3 + 2 * 2, 0),
    "qwen3-8b.yaml": (2, 9, 7 * 2 * 3 + 2 * 2, 0),
    "qwen35-4b.yaml": (2, 9, 7 * 2 * 3 + 2 * 2, 8),
    "qwen36-27b.yaml": (3, 10, 8 * 3 + 2, 8),
    "qwen36-27b-sglang.yaml": (1, 10, 8 * 2 * 3 + 2 * 2, 0),
    "qwen36-27b-sglang-fork.yaml": (1, 10, 8 * 2 * 3 + 2 * 2, 0),
    "default.yaml": (0, 0, 18, 8),
}
KERNELS = ("recorded_trees", "kernel_cell", "kernel_table", "check_roofline", "table_gdn_verify")
KERNEL_FIGURES = ("figure_gdn_verify_latency", "figure_gdn_verify_speedup", "figure_gdn_state_memory")
WEAVERLESS = ("qwen3-4b.yaml", "qwen3-8b.yaml", "qwen35-4b.yaml")


@pytest.mark.parametrize("name", RUNS)
def test_the_whole_run_of_every_configuration_is_planned(plan, name):
    jobs = plan("reproduce_all", "--configfile", f"config/{name}")
    cell = "server_cell" if "sglang" in name else "decode_cell"
    kernels = sum(jobs.get(rule, 0) for rule in (*KERNELS, *KERNEL_FIGURES))
    found = (jobs.get("download_part", 0), jobs.get("prepare_dataset", 0), jobs[cell], kernels)
    assert found == PLANNED[name]
    assert ("example_tree" in jobs) == ("claims_probe" in jobs) == (name in ("default.yaml", "qwen36-27b.yaml"))
    assert jobs["html_report"] == jobs["table_claims"] == 1


def test_every_stack_but_the_shipped_one_has_folders_of_its_own(snakemake):
    """Else one configuration would throw away what another one measured."""
    shipped = snakemake("--dry-run", "reproduce_all").stdout
    other = snakemake("--dry-run", "reproduce_all", "--configfile", "config/qwen3-8b.yaml").stdout
    assert "results/decode.csv" in shipped
    assert "results/qwen3-8b/decode.csv" in other
    for folder in (" results/decode", " results/raw", " results/tables", " figures/speedup", " logs/decode_cell"):
        assert folder not in other
    small = snakemake("--dry-run", "smoke", "--configfile", "config/qwen3-8b.yaml").stdout
    assert "results/qwen3-8b/smoke/decode.csv" in small
    taken = snakemake("--dry-run", "reproduce_all", "--config", "stack={name: raw}")
    assert taken.returncode
    assert "stack.name: found 'raw'; accepted is any other than checks" in taken.stdout


@pytest.mark.parametrize(
    ("target", "name", "message"),
    [
        ("kernel_benchmark", "qwen3-8b.yaml", "kernel_benchmark: qwen3-8b has no Gated-DeltaNet layers"),
        ("ablation_width", "qwen3-8b.yaml", "found 'width'; it is accepted for stacks with a weaver"),
        ("ablation_width", "qwen36-27b-sglang.yaml", "ablation_width: qwen36-27b-sglang is served"),
    ],
)
def test_a_target_that_the_stack_has_no_part_for_is_refused_in_one_line(snakemake, target, name, message):
    done = snakemake("--dry-run", target, "--configfile", f"config/{name}")
    assert done.returncode
    assert message in done.stdout.splitlines()[-1]


def test_a_run_that_cannot_be_finished_starts_nothing(snakemake):
    done = snakemake("reproduce_all", "--configfile", "config/qwen3-8b.yaml")
    assert done.returncode
    assert "this run cannot be finished; nothing was started:" in done.stdout
    for missing in ("gsm8k.revision", "math500.revision", "mbpp.revision"):
        assert missing in done.stdout
    assert "Error in rule" not in done.stdout


@pytest.mark.parametrize("name", RUNS)
def test_the_small_run_of_every_configuration_is_planned(plan, name):
    jobs = plan("smoke", "--configfile", f"config/{name}")
    cell = "server_cell" if "sglang" in name else "decode_cell"
    assert jobs[cell] == 2
    assert jobs.get("prepare_dataset", 0) == (0 if name == "default.yaml" else 2)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "qwen3-4b.yaml",
            "methods=[ar,tfm]",
            "methods: found 'tfm'; it is accepted for stacks whose parts have a weaver",
        ),
        (
            "qwen3-4b.yaml",
            "ablations={run: [pool]}",
            "ablations.run: found 'pool'; it is accepted for stacks with a weaver",
        ),
        (
            "qwen35-4b.yaml",
            "kernels={grids: [{shapes: [27b], trees: [weaver], nodes: [16], batches: [1]}]}",
            "'weaver'",
        ),
        ("qwen36-27b.yaml", "datasets=[mt_bench]", "one with a dev split is needed to choose budgets on (gsm8k"),
        ("qwen36-27b.yaml", "datasets=[gsm8]", "datasets: found 'gsm8'; accepted are mt_bench, gsm8k"),
        ("qwen36-27b-sglang.yaml", "budgets=[0]", "config: budgets.0: found '0'"),
        ("qwen36-27b-sglang.yaml", "expansion_width=2", "expansion_width: unknown key"),
        ("qwen36-27b-sglang.yaml", "datasets=[gsm8k,gsm8k]", "each value is accepted once"),
        ("qwen36-27b-sglang-fork.yaml", "temperatures=[0.125]", "temperatures: found 0.125; whole hundredths"),
        ("qwen36-27b-sglang-fork.yaml", "stack={path: /data/qwen}", "stack: path: found '/data/qwen'; what a run"),
    ],
)
def test_what_a_stack_lacks_is_refused_in_one_line(snakemake, name, change, message):
    done = snakemake("--dry-run", "reproduce_all", "--configfile", f"config/{name}", "--config", change)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert [line for line in done.stdout.splitlines() if message in line], done.stdout


def test_a_stack_without_weaver_and_gdn_layers_runs_to_its_report(project, snakemake):
    (project / "lacking.yaml").write_text("methods: [ar, dflash_chain, ddtree]\nstack: {gdn_verify: null}\n")
    done = snakemake("smoke", "--configfile", "lacking.yaml")
    assert done.returncode == 0, done.stdout
    assert not (project / "results/smoke/raw/kernels.jsonl").exists()
    assert set(pd.read_csv(project / "results/smoke/tables/headline.csv")["method"]) == {"ar", "dflash_chain", "ddtree"}
    claims = pd.read_csv(project / "results/smoke/claims.csv").set_index("id")
    assert (
        claims.loc[["speedup_over_ar", "gdn_verify_64_nodes", "weaver_calls"], "verdict"] == "not testable here"
    ).all()
