"""What Snakemake would do: jobs per target, lint, and one line for what it cannot do."""

import shutil

import pytest

KERNELS = {
    "recorded_trees": 1,
    "kernel_cell": 1,
    "kernel_table": 1,
    "check_roofline": 1,
    "table_gdn_verify": 1,
    "figure_gdn_verify_latency": 1,
    "figure_gdn_verify_speedup": 1,
    "figure_gdn_state_memory": 1,
}
REPORTED = KERNELS | {
    "decode_table": 1,
    "check_invariants": 1,
    "table_speedup": 1,
    "table_headline": 1,
    "table_acceptance_ratio": 1,
    "table_stage_times": 1,
    "figure_speedup_by_dataset": 1,
    "figure_speedup_by_budget": 1,
    "figure_noise_floor": 1,
    "figure_acceptance_by_budget": 1,
    "figure_acceptance_by_depth": 1,
    "figure_accepted_length_histogram": 1,
    "example_tree": 1,
    "figure_example_tree": 1,
    "figure_stage_times": 1,
    "claims_probe": 1,
    "table_claims": 1,
    "html_report": 1,
}


def test_reproduce_all_measures_each_cell_and_makes_each_table_and_figure_once(plan):
    jobs = plan("reproduce_all")
    cells = 3 * 2 * (2 + 1)  # datasets, temperatures, repeats of test and one of dev
    assert jobs == REPORTED | {"decode_cell": cells, "reproduce_all": 1, "total": cells + len(REPORTED) + 1}


def test_both_words_are_targets_and_add_no_work(plan):
    assert plan("reproduce", "all")["total"] == plan("reproduce_all")["total"] + 1


def test_the_kernel_benchmark_is_a_target_of_its_own_that_decodes_nothing_else(plan):
    assert plan("kernel_benchmark") == KERNELS | {"kernel_benchmark": 1, "total": len(KERNELS) + 1}


def test_the_report_needs_all_that_a_run_makes(plan):
    assert plan("report")["total"] == plan("reproduce_all")["total"]


def test_latency_is_a_target_of_its_own_that_needs_no_checkpoint(project, plan):
    recorded = project / "results" / "recorded.csv"
    recorded.parent.mkdir(exist_ok=True)
    recorded.touch()
    jobs = plan("latency_27b", "--config", "latency={acceptance: results/recorded.csv}", "stack={path: checkpoints/no}")
    steps = ("latency_cell", "latency_table", "table_latency", "figure_latency_27b", "latency_27b")
    assert jobs == dict.fromkeys(steps, 1) | {"total": len(steps)}


def test_smoke_has_its_own_few_cells(plan):
    assert plan("smoke") == REPORTED | {"decode_cell": 2, "smoke": 1, "total": 2 + len(REPORTED) + 1}


def test_a_configured_slice_is_all_that_is_planned(plan):
    jobs = plan("reproduce_all", "--config", "datasets=[math]", "repeats=1", "temperatures=[0.7]")
    assert jobs["decode_cell"] == 2


def test_retrain_is_a_chain_of_five_steps_that_needs_no_checkpoints(project, plan):
    (project / "checkpoints").rename(project / "moved")
    try:
        jobs = plan("retrain")
    finally:
        (project / "moved").rename(project / "checkpoints")
    steps = ("tokenizer", "target", "regenerate", "dflash", "weaver")
    assert jobs == dict.fromkeys(steps, 1) | {"retrain": 1, "total": 6}


def test_lint_is_clean(snakemake):
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout
    assert "Congratulations" in done.stdout


def test_targets_are_listed_with_a_line_each(snakemake):
    lines = snakemake("--list-target-rules").stdout.splitlines()
    for target in (
        "all",
        "reproduce",
        "reproduce_all",
        "smoke",
        "kernel_benchmark",
        "latency_27b",
        "report",
        "retrain",
        "regression",
        "estimate",
    ):
        assert any(line.split()[:1] == [target] for line in lines)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("methods=[ar,ddtre]", ["config: methods.1: found 'ddtre'", "'ddtree'", "'tfm'"]),
        ("budgets=[-4]", ["config: budgets.0: found '-4'", "greater than or equal to 1"]),
        ("datasets=[maths]", ["datasets: found 'maths'", "chat, code, math"]),
        ("kernels={recorded: {datasets: [maths]}}", ["datasets: found 'maths'", "chat, code, math"]),
        ("kernels={most_runs: 1}", ["config: kernels.most_runs: found 1", "least_runs (5)"]),
        ("stack={path: checkpoints/huge}", ["stack.path: checkpoints/huge is not there"]),
    ],
)
def test_mistakes_are_one_line(snakemake, change, expected):
    done = snakemake("--dry-run", "reproduce_all", "--config", change)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if expected[0] in line)
    for part in expected:
        assert part in line


def test_unreadable_configuration_names_file_and_line(project, snakemake):
    default = project / "config" / "default.yaml"
    shutil.copy(default, project / "kept.yaml")
    try:
        default.write_text("stack: [\nseed: 0\n")
        done = snakemake("--dry-run", "reproduce_all")
    finally:
        (project / "kept.yaml").replace(default)
    assert done.returncode != 0
    assert "config/default.yaml, line 3: not valid YAML" in done.stdout
    assert "Traceback" not in done.stdout
