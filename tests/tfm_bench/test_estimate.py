"""The estimate against processes of known cost, stored or piloted."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.config import CellSettings, cell_settings, kernel_settings, load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.measure import pilots
from tfm_bench.measure.cost_samples import Sample, cell_sample, cell_work, stored_cells, stored_kernels
from tfm_bench.measure.estimate import TREES, estimate, planned_files
from tfm_bench.measure.records import read_records

DEFAULTS = read_yaml(Path(__file__).parents[2] / "config" / "default.yaml")
CONFIG = load_config(DEFAULTS)
SUMMARY = """output_file	date	rule	log-file(s)	status	plan
results/decode.csv	-	decode_table	-	missing	update pending
results/raw/dev.math.t000.r0.jsonl	-	decode_cell	-	missing	update pending
results/raw/dev.math.t000.r0.rounds.jsonl	-	decode_cell	-	missing	update pending
results/raw/test.math.t000.r0.jsonl	-	decode_cell	-	ok	no update
results/raw/test.math.t100.r1.jsonl	-	decode_cell	-	params changed	update pending
results/raw/kernels.jsonl	-	kernel_cell	-	missing	update pending
"""
TOKEN_S, START_S = 0.01, 4.0


class KnownPilots:
    """Costs that are known; remembers what was asked."""

    def __init__(self):
        self.asked = []

    def cell(self, settings):
        self.asked.append(settings)
        return Sample(work=1000, start_s=START_S, work_s=1000 * TOKEN_S, megabytes=700, bytes=2_000_000)

    def kernels(self, settings):
        self.asked.append(settings)
        return Sample(work=3, start_s=0, work_s=6, megabytes=900, bytes=300_000)


def cell(split: str, repeat: int):
    return cell_settings(CONFIG, split=split, dataset="math", temperature_hundredths=0, repeat=repeat)


def line(name: str, jobs: int, seconds: float, memory: float, disk: float, source: str) -> str:
    minutes = f"{jobs:>4} jobs {seconds / 60:>8.1f} min"
    return f"{name:<17}{minutes} {memory:>8.0f} MB memory {disk:>8.1f} MB disk  (from {source})"


@pytest.fixture
def finished(cells, stack_folder, tmp_path):
    """A folder in which `snakemake smoke` has measured one cell in 100 s; returns the folder and the configuration."""
    settings = settings_for(stack_folder)
    raw = tmp_path / "results" / "smoke" / "raw" / "test.math.t100.r0.jsonl"
    cells.decode_cell(settings, raw)
    log = tmp_path / "logs" / "smoke" / "decode_cell" / "test.math.t100.r0.tsv"
    log.parent.mkdir(parents=True)
    log.write_text("s\th:m:s\tmax_rss\tmax_vms\n100.0\t0:01:40\t812.5\t900\n")
    changed = {"stack": settings.stack.model_dump(), "budgets": [8, 64], "max_new_tokens": 41}
    return tmp_path, load_config(DEFAULTS | changed | {"prompts": {"dev": 3, "test": 3}})


def test_only_raw_files_that_are_to_be_made_are_planned():
    assert planned_files(SUMMARY) == [
        "results/raw/dev.math.t000.r0.jsonl",
        "results/raw/test.math.t100.r1.jsonl",
        "results/raw/kernels.jsonl",
    ]


def test_the_work_of_a_cell_is_the_tokens_that_its_timed_and_staged_runs_may_make(cells, stack_folder):
    for how in ({}, {"split": "dev"}, {"repeat": 1}):
        settings = settings_for(stack_folder, **how).model_copy(update={"methods": ["ar", "ddtree", "tfm"]})
        cells.calls.clear()
        cells.decode_cell(settings, stack_folder / "cell.jsonl")
        timed = [call.max_new_tokens for call in cells.calls if call.max_new_tokens == settings.max_new_tokens]
        assert cell_work(settings) == sum(timed)


def test_known_costs_of_a_pilot_add_up(tmp_path):
    files, known = [*planned_files(SUMMARY), TREES], KnownPilots()
    lines = estimate(CONFIG, files, tmp_path, known)
    work = cell_work(cell("dev", 0)) + cell_work(cell("test", 1))
    trees = 2 * 7 * 2 * 2 * 25  # kinds, sizes, datasets, prompts, tokens
    problems = len(CONFIG.kernels.cases())
    costs = [
        (2, 2 * START_S + work * TOKEN_S, 700, work * 0.002),
        (1, START_S + trees * TOKEN_S, 700, trees * 0.002),
        (1, problems * 2, 900, problems * 0.1),
    ]
    assert lines[:3] == [
        line("decode cells", *costs[0], "a pilot of two prompts: a rough guess"),
        line("recorded trees", *costs[1], "a pilot of two prompts: a rough guess"),
        line("kernel benchmark", *costs[2], "a pilot of its smallest chains: a rough guess"),
    ]
    seconds, disk = (sum(cost[place] for cost in costs) for place in (1, 3))
    assert lines[3] == line("all", 4, seconds, 900, disk, "the lines above")
    assert known.asked == [cell("dev", 0), kernel_settings(CONFIG)]


def test_nothing_to_do_costs_nothing_and_asks_no_pilot(tmp_path):
    known = KnownPilots()
    assert estimate(CONFIG, [], tmp_path, known) == [line("all", 0, 0, 0, 0, "nothing is to be measured")]
    assert known.asked == []


def test_a_stored_cell_foretells_itself(finished):
    folder, config = finished
    (sample,) = stored_cells(folder, config.stack)
    assert sample.start_s + sample.work_s == pytest.approx(100)
    assert sample.megabytes == 812.5
    records = read_records(folder / "results/smoke/raw/test.math.t100.r0.jsonl")
    staged = sum(record.prefill_ms + sum(record.stage_ms.values()) for record in records if record.stage_ms)
    timed = sum(record.prefill_ms + record.decode_ms for record in records)
    assert sample.work_s == pytest.approx((timed + staged) / 1000)
    known = KnownPilots()
    lines = estimate(config, ["results/raw/test.math.t100.r0.jsonl"], folder, known)
    assert lines[0] == line("decode cells", 1, 100, 812.5, sample.bytes / 1e6, "stored cells of this stack: 1")
    assert known.asked == []


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
    assert sample.work == cell_work(settings_for(stack_folder, prompts=2))
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
