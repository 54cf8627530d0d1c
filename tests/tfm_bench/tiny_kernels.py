"""Small problems of the kernel benchmark, and implementations to measure on them."""

from pathlib import Path

import torch

from kernels.gdn_tree import TORCH, Implementation
from tfm_bench.config import KernelSettings, kernel_settings, load_config, read_yaml
from tfm_bench.kernel_config import KernelCase
from tfm_bench.measure.kernel_problems import Problem, make_problem

ROOT = Path(__file__).parents[2]
DEFAULTS = read_yaml(ROOT / "config" / "default.yaml")
CPU = torch.device("cpu")
MIXED = KernelCase("tiny", "ddtree", 7, 2)
PARENTS = [-1, 0, 0, 1, 1, 3, 2]


def settings_for(**changes) -> KernelSettings:
    small = {
        "implementations": ["torch"],
        "grids": [{"shapes": ["tiny"], "trees": ["chain", "star"], "nodes": [5, 6], "batches": [1, 2]}],
        **{"least_runs": 2, "most_runs": 3, "arm_seconds": 0.001, "path": 3},
    }
    section = DEFAULTS["kernels"] | small | changes
    return kernel_settings(load_config(DEFAULTS | {"kernels": section})).model_copy(update={"threads": 1})


def registry(**verify) -> dict[str, Implementation]:
    return {"torch": TORCH._replace(verify=TORCH.verify | verify)}


def problem_of(case: KernelCase = MIXED, parents: list[int] = PARENTS) -> Problem:
    return make_problem(case, parents, 3, torch.float32, CPU)
