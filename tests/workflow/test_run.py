"""The whole workflow on the fake engine: known speeds come out, and only what changed runs again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tfm_bench.measure.versions import family_version

TABLES = ("table_speedup", "table_headline", "table_acceptance_ratio", "table_stage_times")
DECODE_FIGURES = ("speedup_by_dataset", "speedup_by_budget", "noise_floor", "acceptance_by_budget", "stage_times")
ROUND_FIGURES = ("acceptance_by_depth", "accepted_length_histogram")
FIGURES = tuple(f"figure_{name}" for name in (*DECODE_FIGURES, *ROUND_FIGURES))
SHOWN = ("html_report", "smoke")
DECODED_ONCE = ("decode_table", "check_invariants", *TABLES, *FIGURES, "table_claims", *SHOWN)
DECODED = {"decode_cell": 2, **dict.fromkeys(DECODED_ONCE, 1)}
EXAMPLE = {"example_tree": 1, "figure_example_tree": 1}
KERNEL_FIGURES = ("gdn_verify_latency", "gdn_verify_speedup", "gdn_state_memory")
KERNEL_SHOWN = ("table_gdn_verify", *(f"figure_{name}" for name in KERNEL_FIGURES), *SHOWN)
MEASURED_KERNELS = dict.fromkeys(("kernel_cell", "kernel_table", "check_roofline", "table_claims", *KERNEL_SHOWN), 1)
KERNELS = MEASURED_KERNELS | {"recorded_trees": 1}


@pytest.fixture(scope="module")
def finished(project, snakemake) -> Path:
    done = snakemake("smoke")
    assert done.returncode == 0, done.stdout
    return project


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    original = path.read_text()
    assert old in original
    path.write_text(original.replace(old, new, 1))
    try:
        yield
    finally:
        path.write_text(original)


def jobs(plan) -> dict[str, int]:
    return {rule: count for rule, count in plan("smoke").items() if rule != "total"}


def test_outputs_are_where_they_are_promised(finished):
    for name in ("speedup", "headline", "acceptance_ratio", "stage_times", "gdn_verify"):
        for suffix in ("csv", "md", "tex"):
            assert (finished / f"results/smoke/tables/{name}.{suffix}").stat().st_size
    for name in (*DECODE_FIGURES, *ROUND_FIGURES, "example_tree", *KERNEL_FIGURES):
        assert (finished / f"results/smoke/figures/{name}.csv").stat().st_size
        assert (finished / f"figures/smoke/{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (finished / f"figures/smoke/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not list(finished.glob("results/**/*.partial"))
    assert not (finished / "results/decode.csv").exists()


def test_the_speeds_that_were_put_in_come_out(finished):
    table = pd.read_csv(finished / "results/smoke/tables/speedup.csv").set_index("method")
    smoke = yaml.safe_load((finished / "config/smoke.yaml").read_text())
    tokens = smoke["max_new_tokens"] - 1
    assert list(table.index) == ["ar", "dflash_chain", "ddtree", "tfm"]
    assert (table["prompts"] == smoke["prompts"]["test"]).all()
    assert (table["lossless_prompts"] == table["prompts"]).all()
    assert table.loc["ar", "tokens_per_second"] == pytest.approx(100.0)
    assert table.loc["tfm", "speedup"] == pytest.approx(tokens * 10 / (-(-tokens // 4) * 16))
    assert table.loc["tfm", "accepted_drafts"] == tokens / -(-tokens // 4) - 1
    assert list(table["verify_width"]) == [1, 16, 17, 17]


def test_the_rounds_that_were_put_in_come_out(finished):
    depths = pd.read_csv(finished / "results/smoke/figures/acceptance_by_depth.csv")
    assert list(depths["method"]) == ["dflash_chain", "ddtree", "ddtree", "tfm", "tfm", "tfm"]
    assert list(depths["budget"]) == [15, *[16] * 5]
    assert list(depths["depth"]) == [1, 1, 2, 1, 2, 3]
    assert (depths[["share", "share_low", "share_high", "reach"]] == 1).all(axis=None)
    lengths = pd.read_csv(finished / "results/smoke/figures/accepted_length_histogram.csv")
    drafts = {"dflash_chain": 1, "ddtree": 2, "tfm": 3}
    assert (lengths["share"] == (lengths["accepted_drafts"] == lengths["method"].map(drafts))).all()


def test_the_kernel_times_that_were_put_in_come_out(finished):
    kernels = pd.read_csv(finished / "results/smoke/gdn_verify.csv")
    assert set(kernels["shapes"]) == {"27b", "tiny"}
    table = pd.read_csv(finished / "results/smoke/tables/gdn_verify.csv").query("source == 'measured'")
    assert list(table["baseline"]) == ["node_recurrent", "path_recurrent"]
    assert list(table["baseline_verify_us"]) == [4000.0, 6000.0]
    assert list(table["verify_ratio"]) == [4.0, 6.0]
    assert list(table["total_ratio"]) == [3.0, 4.5]


def test_the_report_has_every_item_with_its_command_and_origin(finished):
    page = (finished / "results/smoke/report.html").read_text()
    figures = [
        f"figures/smoke/{name}.png" for name in (*DECODE_FIGURES, *ROUND_FIGURES, *KERNEL_FIGURES, "example_tree")
    ]
    tables = [f"results/smoke/tables/{name.removeprefix('table_')}.csv" for name in (*TABLES, "table_gdn_verify")]
    for made in (*figures, *tables, "results/smoke/claims.csv"):
        assert f"<code>snakemake {made}</code>" in page
    assert page.count("<img ") == len(figures)
    assert page.count("; stack tiny; ") == len(figures) + len(tables) + 1 - 4  # kernels run without the stack
    claims = pd.read_csv(finished / "results/smoke/claims.csv").set_index("id")
    assert claims.loc["speedup_over_ar", "verdict"] == "direction only"
    assert page.count('<tr id="claim-') == len(claims)


def test_a_second_run_does_nothing(finished, plan):
    assert jobs(plan) == {}


def test_comments_and_the_environment_rerun_nothing_and_a_version_its_family(finished, plan):
    figure = finished / "tfm_bench/report/figures/acceptance_by_budget.py"
    version = f"VERSION = {family_version('report.figures.acceptance_by_budget')}"
    with edited(figure, version, f"{version}  # as good as ever"):
        assert jobs(plan) == {}
    with edited(finished / "workflows/scripts/decode_cell.py", '"""Measure one cell."""', '"""Measure a cell."""'):
        assert jobs(plan) == {}
    with edited(finished / "environment.yml", "numpy>=2.2", "numpy>=2.3"):
        assert jobs(plan) == {}
    with edited(figure, version, f"{version}1"):
        assert jobs(plan) == {"figure_acceptance_by_budget": 1, "html_report": 1, "smoke": 1}


def test_a_change_of_what_was_measured_reruns_it(finished, plan):
    with edited(finished / "config/smoke.yaml", "max_new_tokens: 32", "max_new_tokens: 33"):
        assert jobs(plan) == DECODED | EXAMPLE
    with edited(finished / "checkpoints/tiny/weaver/model.safetensors", "weaver", "another"):
        assert jobs(plan) == DECODED | EXAMPLE | KERNELS | {"claims_probe": 1}
    cells = finished / "tfm_bench/measure/cells.py"
    version = f"VERSION = {family_version('measure.cells')}"
    with edited(cells, version, f"{version}  # as good as ever"):
        assert jobs(plan) == {}
    with edited(cells, version, f"{version}1"):
        assert jobs(plan) == DECODED
    with edited(finished / "config/smoke.yaml", "most_runs: 5", "most_runs: 6"):
        assert jobs(plan) == MEASURED_KERNELS
    with edited(finished / "tfm_bench/measure/kernels.py", "VERSION = 1", "VERSION = 2"):
        assert jobs(plan) == MEASURED_KERNELS
    with edited(finished / "tfm_bench/report/gdn_verify.py", "VERSION = ", "VERSION = 9"):
        assert jobs(plan) == dict.fromkeys((*KERNEL_SHOWN, "table_claims"), 1)


def test_a_failing_cell_says_why_in_one_line_and_leaves_no_result(finished, snakemake):
    prompts = finished / "checkpoints/tiny/prompts/math.dev.jsonl"
    raw = finished / "results/smoke/raw/dev.math.t100.r0.jsonl"
    with edited(prompts, '"id"', '"identity"'):
        done = snakemake("results/smoke/decode.csv")
    assert done.returncode != 0
    assert "error: checkpoints/tiny/prompts/math.dev.jsonl:1: found a line that is no prompt" in done.stdout
    assert "Traceback" not in done.stdout
    assert not raw.exists()


def test_a_record_that_breaks_an_invariant_stops_the_tables_in_one_line(finished, snakemake):
    with edited(finished / "results/smoke/raw/test.math.t100.r0.rounds.jsonl", '"accepted":[3,', '"accepted":[2,'):
        done = snakemake("results/smoke/tables/speedup.csv")
    assert done.returncode != 0
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("error: results/smoke/raw/test.math"))
    for part in ("r0.jsonl, line ", "(tfm, budget 16, prompt 0): sum of accepted", "found ", "expected is "):
        assert part in line
    assert "Traceback" not in done.stdout
    assert not (finished / "results/smoke/checks/invariants.csv").exists()


def test_a_kernel_that_beats_its_limit_stops_the_kernel_tables_and_figures(finished, plan, snakemake):
    kernels = finished / "results/smoke/gdn_verify.csv"
    table = pd.read_csv(kernels)
    shown = ["results/smoke/tables/gdn_verify.csv", *(f"figures/smoke/{name}.pdf" for name in KERNEL_FIGURES)]
    with edited(kernels, kernels.read_text(), table.assign(roofline_ms=2 * table["median_ms"]).to_csv(index=False)):
        done = snakemake(*shown)
    assert done.returncode != 0
    assert "error: results/smoke/gdn_verify.csv, row 0 (torch " in done.stdout
    assert not [rule for rule in KERNEL_SHOWN if f"rule {rule}:" in done.stdout.split("Job stats", 1)[1]]
