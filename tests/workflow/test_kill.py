"""kill -9 of a cell and of Snakemake: the running prompt is lost at most, and the results are those of a whole run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfm_bench.config import cell_settings, load_config, read_yaml
from tfm_bench.measure.partial import partial_path
from tfm_bench.measure.records import read_records
from tfm_bench.measure.rounds import read_rounds, rounds_path

CELL = """
import sys
from pathlib import Path
from tfm_bench.config import CellSettings
from tfm_bench.measure.cells import decode_cell
decode_cell(CellSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""
RUNS, SLEEP_S, PATIENCE_S = 5, 0.1, 60
SMOKE_CELL = "results/smoke/raw/test.math.t100.r0.jsonl"


def start(project: Path, *arguments: str, sleep_s: float = SLEEP_S) -> subprocess.Popen[str]:
    """Python on the copy of the package, the fake engine slowed down, as the head of its own process group."""
    environment = {"PYTHONPATH": str(project), "TMPDIR": str(project.parent), "FAKE_ENGINE_SLEEP_S": str(sleep_s)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=project,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_in_second_prompt(process: subprocess.Popen[str], output: Path) -> bytes:
    """SIGKILL to the whole group once the first prompt is on the disk; returns what was on it by then."""
    partial, deadline = partial_path(output), time.monotonic() + PATIENCE_S
    while not (partial.exists() and partial.read_bytes().count(b"\n") > 1):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the cell takes too long"
        time.sleep(0.02)
    time.sleep(1.5 * SLEEP_S)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    return partial.read_bytes()


def assert_resumed(output: Path, killed: bytes, unbroken: Path) -> None:
    """The first prompt is what was on the disk; all is as in a run that nobody killed."""
    taken_over = json.loads(killed.splitlines()[1])["records"]
    records = read_records(output)
    assert [record.model_dump(mode="json") for record in records[:RUNS]] == taken_over
    without_origin = {"exclude": {"provenance"}}
    expected = [record.model_dump(**without_origin) for record in read_records(unbroken)]
    assert [record.model_dump(**without_origin) for record in records] == expected
    assert read_rounds(rounds_path(output)) == read_rounds(rounds_path(unbroken))
    assert not list(output.parent.glob(".*"))


@pytest.fixture(scope="module")
def settings(project: Path) -> str:
    """The cell of the smoke run that reports."""
    smoke = read_yaml(project / "config/default.yaml") | read_yaml(project / "config/smoke.yaml")
    return cell_settings(
        load_config(smoke), split="test", dataset="math", temperature_hundredths=100, repeat=0
    ).model_dump_json()


@pytest.fixture(scope="module")
def unbroken(project: Path, settings: str) -> Path:
    output = project / "unbroken" / "cell.jsonl"
    run_cell(project, settings, output)
    return output


def run_cell(project: Path, settings: str, output: Path) -> str:
    process = start(project, "-c", CELL, settings, str(output), sleep_s=0.0)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    return said


def test_a_killed_cell_goes_on_after_its_last_prompt(project, settings, unbroken):
    output = project / "killed" / "cell.jsonl"
    killed = kill_in_second_prompt(start(project, "-c", CELL, settings, str(output)), output)
    said = run_cell(project, settings, output)
    assert "continued after 1 prompts" in said
    assert "waiting" not in said
    assert_resumed(output, killed, unbroken)


def test_killed_snakemake_goes_on_after_the_last_prompt(project, snakemake, unbroken):
    output = project / SMOKE_CELL
    killed = kill_in_second_prompt(start(project, "-m", "snakemake", SMOKE_CELL), output)
    assert snakemake("--unlock").returncode == 0
    done = snakemake(SMOKE_CELL)
    assert done.returncode == 0, done.stdout
    assert "continued after 1 prompts" in done.stdout
    assert_resumed(output, killed, unbroken)
    assert "Nothing to be done" in snakemake(SMOKE_CELL).stdout
