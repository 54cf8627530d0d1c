"""The processes of a run and their work, and what finished ones and pilots cost."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tfm_bench.cost_files import CONFIG, MEASURING, SUMMARY, ablation_process, finish_cell, probe_process
from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.ablations import ablation_points
from tfm_bench.config import CellSettings
from tfm_bench.errors import UserError
from tfm_bench.measure import pilots
from tfm_bench.measure.cost_samples import cell_sample, is_of_stack, stored_cells, stored_kernels
from tfm_bench.measure.cost_work import Process, Work, cell_work, planned_processes, work_of


@pytest.fixture
def finished(cells, stack_folder, tmp_path):
    """A folder with a finished cell, and the configuration."""
    return tmp_path, finish_cell(cells, stack_folder, tmp_path)


def test_only_what_measures_and_is_to_be_made_is_planned():
    wildcards = {"suite": "", "split": "dev", "dataset": "math", "temperature": "000", "repeat": "0"}
    planned = planned_processes(SUMMARY, MEASURING)
    assert planned[0] == Process(
        "decode_cell", wildcards, "results/raw/dev.math.t000.r0.jsonl", "logs/decode_cell/dev.math.t000.r0.tsv"
    )
    assert [process.output for process in planned[1:]] == [
        "results/raw/test.math.t100.r1.jsonl",
        "results/raw/kernels.jsonl",
        "results/raw/recorded_trees.jsonl",
    ]
    assert planned[-1].benchmark is None


def test_the_work_of_a_cell_is_the_tokens_that_its_timed_and_staged_runs_may_make(cells, stack_folder):
    arms = ablation_points(CONFIG, "width")["widths-r0"].arms
    for how, changes in (
        ({}, {}),
        ({"split": "dev"}, {}),
        ({"repeat": 1}, {}),
        ({}, {"staged": False}),
        ({}, {"arms": arms}),
    ):
        settings = settings_for(stack_folder, **how)
        settings = settings.model_copy(update={"methods": ["ar", "ddtree", "tfm"]} | changes)
        cells.calls.clear()
        cells.decode_cell(settings, stack_folder / "cell.jsonl")
        timed = [call.max_new_tokens for call in cells.calls if call.max_new_tokens == settings.max_new_tokens]
        assert cell_work(settings) == sum(timed)


def test_every_cell_of_an_ablation_is_a_start():
    assert work_of(CONFIG, ablation_process("temperature")).starts == len(CONFIG.ablations.temperatures)
    assert work_of(CONFIG, ablation_process("context")).starts == len(CONFIG.ablations.context.lengths)
    assert work_of(CONFIG, probe_process("pool")) is None


def test_cells_of_another_stack_or_without_records_foretell_nothing(finished):
    folder, config = finished
    assert stored_cells(folder, config.stack.model_copy(update={"dtype": "bfloat16"})) == []
    (folder / "results/smoke/raw/test.math.t100.r0.jsonl").write_text('{"schema_version": 1}\n')
    assert stored_cells(folder, config.stack) == []
    (folder / "results/smoke/raw/test.math.t100.r0.jsonl").unlink()
    assert stored_cells(folder, config.stack) == []
    assert stored_kernels(folder) == []


def test_a_pilot_is_two_prompts_in_a_process_of_its_own(cells, stack_folder, monkeypatch):
    """The process is replaced by one that does nothing, the cell runs here."""

    def popen(command, **options):
        *_, kind, settings, output = command
        assert kind == "cell"
        cells.decode_cell(CellSettings.model_validate_json(settings), Path(output))
        return subprocess.Popen(["true"], **options)

    monkeypatch.setattr(pilots, "subprocess", SimpleNamespace(Popen=popen))
    sample = pilots.ProcessPilots().cell(settings_for(stack_folder))
    assert len({call.prompt for call in cells.calls if call.max_new_tokens == 41}) == 2
    assert sample.work == Work(cell_work(settings_for(stack_folder, prompts=2)))
    assert (sample.work_s > 0, sample.bytes > 1000, sample.megabytes > 0) == (True, True, True)
    failing = SimpleNamespace(Popen=lambda command, **options: subprocess.Popen(["false"], **options))
    monkeypatch.setattr(pilots, "subprocess", failing)
    with pytest.raises(UserError, match="the pilot failed"):
        pilots.ProcessPilots().cell(settings_for(stack_folder))


def test_a_process_too_short_to_be_sampled_has_a_time(finished):
    folder, config = finished
    log = folder / "logs" / "smoke" / "decode_cell" / "test.math.t100.r0.tsv"
    log.write_text("s\th:m:s\tmax_rss\n100.0\t0:01:40\tNA\n")
    assert [sample.megabytes for sample in stored_cells(folder, config.stack)] == [0]
    assert cell_sample(folder / "results/smoke/raw/test.math.t100.r0.jsonl", 0.0, 1.0).start_s == 0


def test_a_last_run_on_another_stack_says_nothing(tmp_path):
    raw, other = tmp_path / "pool.probe.jsonl", CONFIG.stack.model_copy(update={"dtype": "bfloat16"})
    raw.write_text('{"settings": {"stack": ' + other.model_dump_json() + "}}\n")
    assert is_of_stack(raw, other)
    assert not is_of_stack(raw, CONFIG.stack)
    raw.write_text('{"settings": {"threads": 2}}\n')
    assert is_of_stack(raw, CONFIG.stack)
