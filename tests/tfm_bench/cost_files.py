"""What planned and finished processes look like to the estimate."""

from pathlib import Path

from tests.tfm_bench.fake_cells import settings_for
from tfm_bench.config import Config, load_config, read_yaml
from tfm_bench.measure.cost_work import Process

ROOT = Path(__file__).parents[2]
DEFAULTS = read_yaml(ROOT / "config" / "default.yaml")
CONFIG = load_config(DEFAULTS)
CELL = (
    r"results/(?P<suite>(smoke/)?)raw/"
    r"(?P<split>dev|test)\.(?P<dataset>.+)\.t(?P<temperature>\d+)\.r(?P<repeat>\d+)\.jsonl$"
)
MEASURING = {
    "decode_cell": (CELL, "logs/{suite}decode_cell/{split}.{dataset}.t{temperature}.r{repeat}.tsv"),
    "kernel_cell": (r"results/(?P<suite>(smoke/)?)raw/kernels\.jsonl$", "logs/{suite}kernel_cell.tsv"),
    "recorded_trees": (r"results/(?P<suite>(smoke/)?)raw/recorded_trees\.jsonl$", None),
}
SUMMARY = """output_file	date	rule	log-file(s)	status	plan
results/decode.csv	-	decode_table	-	missing	update pending
results/raw/dev.math.t000.r0.jsonl	-	decode_cell	-	missing	update pending
results/raw/dev.math.t000.r0.rounds.jsonl	-	decode_cell	-	missing	update pending
results/raw/test.math.t000.r0.jsonl	-	decode_cell	-	ok	no update
results/raw/test.math.t100.r1.jsonl	-	decode_cell	-	params changed	update pending
results/raw/kernels.jsonl	-	kernel_cell	-	missing	update pending
results/raw/recorded_trees.jsonl	-	recorded_trees	-	missing	update pending
"""


def cell_process(name: str) -> Process:
    split, dataset, temperature, repeat = name.split(".")
    wildcards = {"split": split, "dataset": dataset, "temperature": temperature[1:], "repeat": repeat[1:]}
    return Process("decode_cell", wildcards, f"results/raw/{name}.jsonl", f"logs/decode_cell/{name}.tsv")


def ablation_process(name: str) -> Process:
    files = (f"results/raw/ablations/{name}.jsonl", f"logs/ablations/{name}.tsv")
    return Process("ablation_cells", {"ablation": name}, *files)


def probe_process(name: str) -> Process:
    files = (f"results/raw/ablations/{name}.probe.jsonl", f"logs/ablations/{name}.probe.tsv")
    return Process("ablation_probe", {"ablation": name}, *files)


def write_benchmark(path: Path, seconds: float, megabytes: float = 812.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\tmax_rss\tmax_vms\n{seconds}\t0:00:00\t{megabytes}\t900\n")


def finish_cell(cells, stack_folder: Path, folder: Path) -> Config:
    """Measure what `snakemake smoke` does, one cell in 100 s, into `folder`; returns the configuration."""
    settings = settings_for(stack_folder)
    cells.decode_cell(settings, folder / "results" / "smoke" / "raw" / "test.math.t100.r0.jsonl")
    write_benchmark(folder / "logs" / "smoke" / "decode_cell" / "test.math.t100.r0.tsv", 100)
    changed = {"stack": settings.stack.model_dump(), "budgets": [8, 64], "max_new_tokens": 41}
    changed["ablations"] = DEFAULTS["ablations"] | {"prompts": 3}
    return load_config(DEFAULTS | changed | {"prompts": {"dev": 3, "test": 3}})
