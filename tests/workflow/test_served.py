"""A run whose stack is served, on the fake SGLang: records, checks, tables of both protocols and the report."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.tfm_bench.backends.fake_installation import FAKE, make_config
from tests.workflow.conftest import ROOT, make_project, planned_jobs

TABLES = ("headline", "speedup", "acceptance_ratio", "protocols")
FIGURES = ("speedup_by_dataset", "speedup_by_budget", "acceptance_by_budget", "noise_floor")
PROMPTS = {"dev": 1, "test": 2}


@pytest.fixture(scope="module")
def snakemake(tmp_path_factory):
    """Runs Snakemake with a served stack; (arguments) -> the finished process."""
    project = make_project(tmp_path_factory.mktemp("with blank é") / "copy")
    changes = {"prompts": PROMPTS, "temperatures": [1.0], "max_new_tokens": 20}
    config = make_config("checkpoints/tiny", **changes)
    config["stack"]["weaver"] = "checkpoints/tiny/weaver/model.safetensors"
    (project / "served.yaml").write_text(yaml.safe_dump(config))
    path = [str(project), str(FAKE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    switches = {"FAKE_SGLANG_ENGINE": "scripted", "FAKE_SGLANG_FORK": "1", "TMPDIR": str(project.parent)}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments, "--configfile", "served.yaml"],
            cwd=project,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"} | switches,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    run.project = project
    return run


@pytest.fixture(scope="module")
def finished(snakemake) -> Path:
    done = snakemake("reproduce_all")
    assert done.returncode == 0, done.stdout
    return snakemake.project


def test_tables_figures_and_report_are_made_once(finished, snakemake):
    for name in TABLES:
        assert (finished / f"results/fake/tables/{name}.md").stat().st_size
    for name in FIGURES:
        assert (finished / f"figures/fake/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "results/fake/report.html").stat().st_size
    assert planned_jobs(snakemake("--dry-run", "reproduce_all").stdout) == {}


def test_speedups_come_from_what_the_servers_did(finished):
    table = pd.read_csv(finished / "results/fake/tables/speedup.csv").set_index("method")
    assert list(table.index) == ["ar", "dflash_chain", "ddtree", "tfm"]
    assert (table["status"] == "ok").all()
    assert (table["prompts"] == PROMPTS["test"]).all()
    # The scripted servers emit 1, 2, 3 and 4 tokens per round, and 19 behind the first.
    assert list(table["acceptance_length"]) == pytest.approx([1, 19 / 10, 19 / 7, 19 / 5])


def test_both_protocols_are_reported(finished):
    table = pd.read_csv(finished / "results/fake/tables/protocols.csv")
    test = table[(table["split"] == "test") & (table["dataset"] == "all")]
    assert set(test["protocol"]) == {"ours", "paper"}
    assert (test[test["method"] == "ar"]["speedup"] == 1).all()


def test_claims_that_only_the_engine_can_test_say_so(finished):
    claims = pd.read_csv(finished / "results/fake/claims.csv").set_index("id")
    for name in ("gdn_verify_64_nodes", "gdn_verify_share", "weaver_calls"):
        assert claims.loc[name, "verdict"] == "not testable here"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("kernel_benchmark", "kernel_benchmark: fake has no Gated-DeltaNet layers that the engine verifies"),
        ("ablation_budget", "ablation_budget: fake is served; a stack that the engine decodes is accepted"),
        ("latency_27b", "sglang: fake is served; this target accepts a stack that the engine decodes"),
    ],
)
def test_what_only_the_engine_measures_is_refused_in_one_line(snakemake, target, message):
    done = snakemake("--dry-run", target)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert message in done.stdout.splitlines()
