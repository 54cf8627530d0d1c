"""The estimate against what Snakemake would run: no process that measures is left out."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tfm_bench.ablation_config import ABLATIONS

WORKFLOWS = Path(__file__).parents[2] / "workflows"
MEASURED = {
    *("decode_cell", "ablation_cells", "ablation_probe", "claims_probe"),
    *("recorded_trees", "kernel_cell", "example_tree"),
}


def measuring_rules() -> set[str]:
    """Rules that take the GPU or have a benchmark file."""
    texts = [file.read_text() for file in WORKFLOWS.glob("*.smk")]
    rules = [rule for text in texts for rule in re.split(r"(?m)^rule ", text)[1:]]
    return {rule.partition(":")[0] for rule in rules if re.search(r"(?m)^ +(gpu=1|benchmark:)", rule)}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", f"ablations={{run: [{','.join(ABLATIONS)}]}}"], MEASURED),
        (["--configfile", "config/qwen36-27b-sglang.yaml"], {"server_cell"}),
    ],
)
def test_no_measuring_process_is_left_out(snakemake, plan, arguments, expected):
    """Jobs of a dry run whose rules measure, against those in the lines. The engine is a fake, so pilots are short."""
    measuring = {rule: count for rule, count in plan("reproduce_all", *arguments).items() if rule in measuring_rules()}
    assert set(measuring) == expected
    done = snakemake("estimate", *arguments)
    counted = Counter()
    for name, count in re.findall(r"(?m)^(\w+) +(\d+) jobs ", done.stdout):
        counted[name] += int(count)
    assert counted == measuring | {"all": sum(measuring.values())}, done.stdout
