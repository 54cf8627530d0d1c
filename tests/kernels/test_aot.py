"""Every Triton kernel compiles for every generation of data centre GPUs, and none spills; no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.aot import Resources, compile_ahead, fault, triton_modules
from kernels.gdn_tree import triton_structure

ROOT = Path(__file__).resolve().parents[2]
CAPABILITIES = [80, 90, 100]
GREEDY = """
import triton, triton.language as tl
from kernels.aot import Specialisation

@triton.jit
def scale(x, FEW: tl.constexpr):
    values = tl.load(x + tl.arange(0, FEW))
    tl.store(x + tl.arange(0, FEW), values * tl.sum(values, 0))

def specialisations():
    return [Specialisation(str(few), scale, {"x": "*fp32:16"}, {"FEW": few}, num_warps=1) for few in (512, 16384)]
"""


def start_aot(*arguments, path=ROOT):
    """Outside of this process, where kernels are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}"
    command = [sys.executable, "-m", "kernels.aot", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def outcome(process):
    output, errors = process.communicate()
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors


@pytest.fixture(scope="module")
def started():
    """All generations at once: a cold compiler takes most of a minute for each."""
    return {capability: start_aot("--capability", str(capability)) for capability in CAPABILITIES}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles_without_a_spill(started, capability):
    code, records, errors = outcome(started[capability])
    assert [record for record in records if record["fault"]] == []
    assert code == 0, errors
    assert {record["capability"] for record in records} == {capability}
    assert {"kernels.gdn_tree.triton_fused", "kernels.gdn_tree.triton_solve"} <= {
        record["module"] for record in records
    }
    assert all(record["registers"] > 0 for record in records)


def test_a_spill_is_a_failure(tmp_path):
    (tmp_path / "triton_greedy.py").write_text(GREEDY)
    code, records, _ = outcome(start_aot("triton_greedy", path=tmp_path))
    assert code == 1
    assert [bool(record["fault"]) for record in records] == [False, True]
    assert "spills" in records[1]["fault"]


def test_modules_are_found():
    assert {"kernels.gdn_tree.triton_fused", "kernels.gdn_tree.triton_structure"} <= set(triton_modules())


def test_interpreted_kernels_cannot_be_compiled():
    with pytest.raises(RuntimeError, match="unset TRITON_INTERPRET"):
        compile_ahead(triton_structure.specialisations()[0], 90)


@pytest.mark.parametrize(("capability", "fits"), [(80, False), (86, False), (90, True), (75, False)])
def test_shared_memory_has_a_limit(capability, fits):
    assert (fault(Resources(64, 200 * 1024, 0), capability) is None) == fits
