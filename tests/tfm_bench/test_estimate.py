"""The estimate against processes of known cost, stored or piloted."""

from dataclasses import replace

import pytest

from tests.tfm_bench.backends.fake_installation import make_config
from tests.tfm_bench.cost_files import (
    CONFIG,
    MEASURING,
    ROOT,
    SUMMARY,
    ablation_process,
    cell_process,
    finish_cell,
    probe_process,
    write_benchmark,
)
from tfm_bench.ablations import ablation_points
from tfm_bench.backends.request_log import requests_path
from tfm_bench.backends.settings import load_server_config, server_cell_settings
from tfm_bench.config import cell_settings, kernel_settings, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.measure.cost_samples import Sample, stored_cells
from tfm_bench.measure.cost_work import Process, Work, cell_work, cells_work, planned_processes, work_of
from tfm_bench.measure.estimate import estimate
from tfm_bench.measure.records import read_records

SERVED = load_server_config(read_yaml(ROOT / "config" / "qwen36-27b-sglang.yaml"))
TOKEN_S, START_S = 0.01, 4.0
SERVED_CELLS = ["test.gsm8k.t000.r0", "dev.gsm8k.t000.r0"]


class KnownPilots:
    """Costs that are known; remembers what was asked."""

    def __init__(self):
        self.asked = []

    def cell(self, settings):
        self.asked.append(settings)
        return Sample(Work(1000), start_s=START_S, work_s=1000 * TOKEN_S, megabytes=700, bytes=2_000_000)

    def kernels(self, settings):
        self.asked.append(settings)
        return Sample(Work(3), start_s=0, work_s=6, megabytes=900, bytes=300_000)


def cell(split: str, repeat: int):
    return cell_settings(CONFIG, split=split, dataset="math", temperature_hundredths=0, repeat=repeat)


def line(name: str, jobs: int, seconds: float, memory: float, disk: float, source: str) -> str:
    minutes = f"{jobs:>4} jobs {seconds / 60:>8.1f} min"
    return f"{name:<17}{minutes} {memory:>8.0f} MB memory {disk:>8.1f} MB disk  (from {source})"


@pytest.fixture
def finished(cells, stack_folder, tmp_path):
    """A folder with a finished cell, and the configuration."""
    return tmp_path, finish_cell(cells, stack_folder, tmp_path)


def test_known_costs_of_a_pilot_add_up(tmp_path):
    known = KnownPilots()
    example = Process("example_tree", {}, "results/example_tree.csv", None)
    planned = [*planned_processes(SUMMARY, MEASURING), ablation_process("pool"), example]
    lines = estimate(CONFIG, planned, tmp_path, known)
    work = cell_work(cell("dev", 0)) + cell_work(cell("test", 1))
    pool = 6 * (2 + 10) * 64  # prompts, twice `ar` and sizes, tokens
    trees = 2 * 7 * 2 * 2 * 25  # kinds, sizes, datasets, prompts, tokens
    problems = len(CONFIG.kernels.cases())
    costs = [
        (1, START_S + pool * TOKEN_S, 700, pool * 0.002),
        (2, 2 * START_S + work * TOKEN_S, 700, work * 0.002),
        (1, START_S + 96 * TOKEN_S, 700, 96 * 0.002),
        (1, problems * 2, 900, problems * 0.1),
        (1, START_S + trees * TOKEN_S, 700, trees * 0.002),
    ]
    assert lines[:5] == [
        line("ablation_cells", *costs[0], "a pilot of two prompts: a rough guess"),
        line("decode_cell", *costs[1], "a pilot of two prompts: a rough guess"),
        line("example_tree", *costs[2], "a pilot of two prompts: a rough guess"),
        line("kernel_cell", *costs[3], "a pilot of its smallest chains: a rough guess"),
        line("recorded_trees", *costs[4], "a pilot of two prompts: a rough guess"),
    ]
    seconds, disk = (sum(cost[place] for cost in costs) for place in (1, 3))
    assert lines[5] == line("all", 6, seconds, 900, disk, "the lines above")
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
    lines = estimate(config, [cell_process("test.math.t100.r0")], folder, known)
    assert lines[0] == line("decode_cell", 1, 100, 812.5, sample.bytes / 1e6, "stored cells of this stack: 1")
    assert known.asked == []


def test_an_ablation_is_foretold_by_its_own_run_and_else_by_all_cells(cells, finished):
    folder, config = finished
    points = ablation_points(config, "temperature")
    cells.ablation_cells(points, folder / "results/raw/ablations/temperature.jsonl")
    write_benchmark(folder / "logs/ablations/temperature.tsv", 300)
    first, second = samples = stored_cells(folder, config.stack)
    assert second.process == "logs/ablations/temperature.tsv"
    assert second.work == cells_work([*points.values()])
    assert second.work.starts == 5
    source = "stored cells of this stack: 2"
    (own, _) = estimate(config, [ablation_process("temperature")], folder, KnownPilots())
    assert own == line("ablation_cells", 1, 300, 812.5, second.bytes / 1e6, source)
    work = work_of(config, ablation_process("pool"))
    done, spent = first.work.amount + second.work.amount, first.work_s + second.work_s
    seconds = (first.start_s + second.start_s) / 6 + work.amount * spent / done
    disk = work.amount * sum(sample.bytes for sample in samples) / done / 1e6
    (other, _) = estimate(config, [ablation_process("pool")], folder, KnownPilots())
    assert other == line("ablation_cells", 1, seconds, 812.5, disk, source)


@pytest.fixture
def served(finished, stack_folder):
    """A folder with a served cell that took 60 s; its records have the numbers of another one."""
    folder, _ = finished
    mapping = make_config(stack_folder, prompts={"dev": 1, "test": 2}, temperatures=[1.0], max_new_tokens=20)
    config = load_server_config(mapping)
    place = {"dataset": "math", "temperature_hundredths": 100, "repeat": 0}
    settings = server_cell_settings(config, split="test", **place)
    records = read_records(folder / "results/smoke/raw/test.math.t100.r0.jsonl")
    records = [record.model_copy(update={"settings": settings, "stage_ms": None}) for record in records]
    raw = folder / "results/raw/test.math.t100.r0.jsonl"
    raw.parent.mkdir(parents=True)
    raw.write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    requests_path(raw).write_text("{}\n")
    write_benchmark(folder / "logs/server_cell/test.math.t100.r0.tsv", 60)
    return folder, config, records


@pytest.fixture
def committed(finished):
    """The folder with a committed run, in which a cell that is stored here took 50 s."""
    folder, config = finished
    expected = folder / "results" / "expected"
    expected.mkdir()
    (expected / "decode.csv").write_text(f"stack,repeat\n{config.stack.name},0\n")
    rows = ["logs/smoke/decode_cell/test.math.t100.r0.tsv,50,600", "logs/ablations/ceiling.probe.tsv,60,700"]
    (expected / "seconds.csv").write_text("\n".join(["benchmark,seconds,megabytes", *rows, ""]))
    return folder, config


def test_a_probe_takes_what_it_took_or_what_the_committed_one_did_or_is_unknown(committed):
    folder, config = committed
    raw = folder / "results/raw/ablations/pool.probe.jsonl"
    raw.parent.mkdir(parents=True)
    raw.write_text('{"settings": {"stack": ' + config.stack.model_dump_json() + "}}\n")
    write_benchmark(folder / "logs/ablations/pool.probe.tsv", 30)
    claims = Process("claims_probe", {}, "results/raw/claims.jsonl", "logs/claims_probe.tsv")
    planned = [probe_process("pool"), probe_process("ceiling"), claims]
    lines = estimate(config, planned, folder, KnownPilots())
    assert lines == [
        line("ablation_probe", 1, 120, 700, 0, "the committed run, times 2 as its cells here").replace(
            "     0.0 MB disk", " unknown MB disk"
        ),
        line("ablation_probe", 1, 30, 812.5, raw.stat().st_size / 1e6, "their last runs, whatever their settings were"),
        "claims_probe        1 jobs  unknown  (no run on this stack is stored)",
        line("all", 3, 150, 812.5, 0, "the lines above; left out as unknown: 1 jobs"),
    ]


def test_the_committed_run_says_nothing_of_another_stack_and_is_not_scaled_without_a_cell(committed):
    folder, config = committed
    other = config.model_copy(update={"stack": config.stack.model_copy(update={"name": "other"})})
    (probe, _) = estimate(other, [probe_process("ceiling")], folder, KnownPilots())
    assert "unknown" in probe
    (folder / "results/smoke/raw/test.math.t100.r0.jsonl").unlink()
    (probe, _) = estimate(config, [probe_process("ceiling")], folder, KnownPilots())
    assert "1.0 min" in probe
    assert probe.endswith("(from the committed run, as on its machine)")


def test_without_a_served_cell_one_line_says_what_to_measure(tmp_path):
    planned = [replace(cell_process(name), rule="server_cell") for name in SERVED_CELLS]
    remedy = f"measure one, such as results/raw/{SERVED_CELLS[1]}.jsonl"
    assert estimate(SERVED, planned, tmp_path, KnownPilots()) == [
        f"server_cell         2 jobs  unknown  (no served cell of this stack is stored; {remedy})",
        "all                 2 jobs  unknown  (the lines above; left out as unknown: 2 jobs)",
    ]


def test_what_a_failed_pilot_stood_for_is_unknown(tmp_path):
    class FailingCell(KnownPilots):
        def cell(self, settings):
            raise UserError("the pilot failed")

    class Failing(FailingCell):
        def kernels(self, settings):
            raise UserError("the pilot failed")

    planned = planned_processes(SUMMARY, MEASURING)
    assert [line.split()[3] for line in estimate(CONFIG, planned, tmp_path, Failing())] == ["unknown"] * 4
    _, kernels, _, total = estimate(CONFIG, planned, tmp_path, FailingCell())
    assert kernels.endswith("(from a pilot of its smallest chains: a rough guess)")
    assert total.endswith("(from the lines above; left out as unknown: 3 jobs)")


def test_a_served_cell_foretells_others_by_servers_and_tokens(served):
    folder, config, records = served
    (sample,) = stored_cells(folder, config.stack)
    spent = sum(record.prefill_ms + record.decode_ms for record in records) / 1000
    assert sample.work == Work(5 * 2 * 20, starts=5)  # runs, prompts, tokens
    assert (sample.work_s, sample.start_s) == pytest.approx((spent, 60 - spent))
    planned = replace(cell_process("dev.math.t100.r0"), rule="server_cell")
    (found, _) = estimate(config, [planned], folder, KnownPilots())
    seconds = 60 - spent + spent / 2
    assert found == line("server_cell", 1, seconds, 812.5, sample.bytes / 2e6, "stored cells of this stack: 1")
