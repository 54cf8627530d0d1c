"""Exit codes of `snakemake regression` and the estimate, in real runs."""

import subprocess
from pathlib import Path

import pytest

from tests.tfm_bench.stored_runs import decode_rows, kernel_rows

TABLE = Path("results/tables/regression.csv")
ONE_DATASET = ["--config", "datasets=[math]", "repeats=1", "temperatures=[1.0]", "budgets=[16]", "max_new_tokens=32"]


@pytest.fixture(scope="module")
def stored(project) -> Path:
    """The project with a finished run and some to compare it with."""
    runs = {
        "results": decode_rows(),
        "same": decode_rows(seed=1),
        "faster": decode_rows(seed=1).assign(decode_ms=lambda rows: rows["decode_ms"] / 2),
        "elsewhere": decode_rows(seed=1).assign(device="Other CPU"),
        "old": decode_rows().drop(columns="control"),
    }
    for name, rows in runs.items():
        (project / name).mkdir(exist_ok=True)
        rows.to_csv(project / name / "decode.csv", index=False)
    (project / "kernels-too").mkdir()
    decode_rows(seed=1).to_csv(project / "kernels-too/decode.csv", index=False)
    kernel_rows().to_csv(project / "kernels-too/gdn_verify.csv", index=False)
    (project / "results/checks").mkdir()
    (project / "results/checks/invariants.csv").write_text("check,claims\ntext,1\n")
    return project


@pytest.fixture(scope="module")
def half_done(stored, snakemake) -> subprocess.CompletedProcess[str]:
    """A comparison whose run stops in one of its two cells, over the table of an older one."""
    prompts = stored / "checkpoints/tiny/prompts/math.dev.jsonl"
    kept = prompts.read_text()
    (stored / TABLE).parent.mkdir(exist_ok=True)
    (stored / TABLE).write_text("what,verdict\ntfm,regression\n")
    prompts.write_text(kept.replace('"id"', '"identity"'))
    done = snakemake("regression", *ONE_DATASET, "baseline=same")
    prompts.write_text(kept)
    return done


@pytest.mark.parametrize(
    ("configured", "code", "says"),
    [
        (["baseline=same"], 0, "no regression: 0 of 12 comparisons"),
        (["baseline=faster/decode.csv"], 1, "REGRESSION: 6 of 12 comparisons"),
        (["baseline=elsewhere"], 2, "error: results: measured on Some CPU, 2 threads, float32; elsewhere on Other CPU"),
        (["baseline=old"], 2, "old/decode.csv: lacks control"),
        (["baseline=same", "budgets=[-4]"], 2, "config: budgets.0: found '-4'"),
        (["seed=0"], 2, "regression: no baseline"),
    ],
)
def test_exit_codes_tell_a_regression_from_what_prevents_the_comparison(stored, snakemake, configured, code, says):
    # Only this rule: the finished run is taken as it stands.
    done = snakemake("regression", "--allowed-rules", "regression", "--config", *configured)
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout
    assert "Traceback" not in done.stdout
    assert code == 2 or (stored / TABLE).exists()


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(("baseline", "kernels"), [("same", None), ("kernels-too", 1)])
def test_a_comparison_needs_the_checks_of_what_it_compares(plan, baseline, kernels):
    jobs = plan("regression", "--forceall", *ONE_DATASET, f"baseline={baseline}")
    assert (jobs["check_invariants"], jobs.get("check_roofline")) == (1, kernels)


def test_a_cell_that_fails_is_no_regression(stored, half_done):
    assert half_done.returncode == 2, half_done.stdout
    assert "found a line that is no prompt" in half_done.stdout
    assert not (stored / TABLE).exists()


@pytest.mark.usefixtures("half_done")
def test_the_estimate_counts_what_would_run_and_says_from_what(snakemake):
    done = snakemake("estimate", *ONE_DATASET)
    assert done.returncode == 0, done.stdout
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if " jobs  " in line}
    assert list(lines) == ["claims_probe", "decode_cell", "example_tree", "kernel_cell", "recorded_trees", "all"]
    assert lines["decode_cell"].split()[1] == "1"
    assert lines["decode_cell"].endswith("(from stored cells of this stack: 1)")
    assert lines["kernel_cell"].endswith("(from a pilot of its smallest chains: a rough guess)")
    assert lines["claims_probe"].endswith("jobs  unknown  (no run on this stack is stored)")
    assert lines["all"].split()[:3] == ["all", "5", "jobs"]
