"""A copy of the project in a folder with blanks, with fakes in place of what takes time and a made-up stack."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("Snakefile", "environment.yml", "config", "profiles", "workflows", "kernels", "tfm_bench")
FAKES = {
    "fake_engine.py": "engine.py",
    "fake_recorded_trees.py": "measure/recorded_trees.py",
    "fake_kernels.py": "measure/kernels.py",
    "fake_claims_probe.py": "measure/probes/claims.py",
    "fake_example_tree.py": "measure/example_tree.py",
}
DATASETS = ("math", "code", "chat")


def run_snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Snakemake in `project`, on its own copy of the package, with stderr and stdout in stdout."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=project,
        # Its own folder for temporary files, so its own device lock: a measurement that runs meanwhile goes on.
        env=os.environ | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(project.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def planned_jobs(output: str) -> dict[str, int]:
    """Rule -> number of jobs, from the statistics of a dry run; empty when nothing is to be done."""
    table = re.search(r"Job stats:\n.*?\n-[- ]*\n(.*?)\n\n", output, flags=re.DOTALL)
    return {} if table is None else {row.split()[0]: int(row.split()[1]) for row in table[1].splitlines()}


def make_project(folder: Path) -> Path:
    folder.mkdir()
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for fake, real in FAKES.items():
        shutil.copy(Path(__file__).with_name(fake), folder / "tfm_bench" / real)
    for name in ("default.yaml", "smoke.yaml"):
        _without_ablations(folder / "config" / name)
    _make_stack(folder / "checkpoints" / "tiny")
    return folder


def _without_ablations(config: Path) -> None:
    """No fake stands in for what an ablation varies inside the engine; they have tests of their own."""
    text, changes = re.subn(r"(?m)^  run: \[.*\]$", "  run: []", config.read_text(encoding="utf-8"))
    assert changes == 1
    config.write_text(text, encoding="utf-8")


def _make_stack(stack: Path) -> None:
    for part in ("target", "drafter", "weaver"):
        (stack / part).mkdir(parents=True)
        (stack / part / "config.json").write_text('{"block_size": 16}')
        (stack / part / "model.safetensors").write_text(part)
    (stack / "target" / "tokenizer.json").write_text("{}")
    (stack / "prompts").mkdir()
    lines = [json.dumps({"id": f"p{i}", "text": f"prompt {i}", "kind": "text"}) for i in range(16)]
    for dataset in DATASETS:
        for split in ("dev", "test"):
            (stack / "prompts" / f"{dataset}.{split}.jsonl").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make_project(tmp_path_factory.mktemp("with blank é") / "copy")


@pytest.fixture(scope="module")
def snakemake(project) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: run_snakemake(project, *arguments)


@pytest.fixture(scope="module")
def plan(snakemake) -> Callable[..., dict[str, int]]:
    """Jobs of a dry run of these arguments; fails when Snakemake does."""

    def dry_run(*arguments: str) -> dict[str, int]:
        done = snakemake("--dry-run", *arguments)
        assert done.returncode == 0, done.stdout
        return planned_jobs(done.stdout)

    return dry_run
