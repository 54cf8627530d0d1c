"""The rule that downloads checkpoints, against a hub on the loopback interface."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tfm_bench.models.local_hub import COMMIT, LocalHub
from tests.workflow.conftest import planned_jobs

ROOT = Path(__file__).parents[2]
FILES = {
    "some/target": {"config.json": b"{}", "model.safetensors": b"weights" * 1000},
    "some/drafter": {"config.json": b"{}", "model.safetensors": b"drafts" * 1000},
}
SNAKEFILE = """
import json
import shlex
import sys
from types import SimpleNamespace
from tfm_bench.stack_config import StackConfig

sys.executable = shlex.quote(sys.executable)  # as the project's own Snakefile does
RUN = ""
CONFIGS = {RUN: SimpleNamespace(stack=StackConfig.model_validate(json.loads(open("stack.json").read())))}

include: "workflows/download.smk"

rule all:
    input: expand("checkpoints/small/{part}/source.json", part=["target", "drafter"])
"""


def stack(drafter_weights=FILES["some/drafter"]["model.safetensors"]):
    parts = {
        repo.removeprefix("some/"): {"repo": repo, "revision": COMMIT, "files": sorted(files)}
        for repo, files in FILES.items()
    }
    parts["drafter"]["sha256"] = {"model.safetensors": hashlib.sha256(drafter_weights).hexdigest()}
    options = {"dtype": "bfloat16", "gdn_verify": "fused", "commit": "replay", "threads": 1}
    return {"name": "small", "path": "checkpoints/small", "parts": parts, **options}


@pytest.fixture
def snakemake(tmp_path):
    """Runs Snakemake in a folder with this one rule; (arguments) -> the finished process."""
    project = tmp_path / "with blank"
    project.mkdir()
    (project / "Snakefile").write_text(SNAKEFILE)
    (project / "workflows").symlink_to(ROOT / "workflows")
    (project / "stack.json").write_text(json.dumps(stack()))
    with LocalHub({repo: dict(files) for repo, files in FILES.items()}).running() as hub:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}

        def run(*arguments):
            return subprocess.run(
                [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
                cwd=project,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
            )

        run.project, run.hub = project, hub
        yield run


def test_each_part_is_one_job_that_is_done_once(snakemake):
    assert planned_jobs(snakemake("--dry-run").stdout) == {"all": 1, "download_part": 2, "total": 3}
    done = snakemake()
    assert done.returncode == 0, done.stdout
    folder = snakemake.project / "checkpoints" / "small"
    for repo, files in FILES.items():
        part = folder / repo.removeprefix("some/")
        assert {name: (part / name).read_bytes() for name in files} == files
        assert json.loads((part / "source.json").read_text())["commit"] == COMMIT
    assert not planned_jobs(snakemake("--dry-run").stdout)


def test_a_wrong_hash_is_one_line_and_leaves_no_part(snakemake):
    (snakemake.project / "stack.json").write_text(json.dumps(stack(b"other weights")))
    done = snakemake("--keep-going")
    assert done.returncode == 1
    assert "for model.safetensors of some/drafter; the file is damaged or not the published one" in done.stdout
    assert "Traceback" not in done.stdout
    folder = snakemake.project / "checkpoints" / "small"
    assert (folder / "target" / "source.json").is_file()
    assert not list((folder / "drafter").glob("*"))
    log = snakemake.project / "logs" / "download" / "small.drafter.log"
    assert log.read_text().count("\n") == 1
