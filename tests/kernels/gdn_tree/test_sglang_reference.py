"""SGLang's own tree kernel, interpreted, against ours and against the definition in fp64."""

from __future__ import annotations

import sys

import pytest
import torch

from kernels.gdn_tree import sglang_reference, triton_recurrent
from kernels.gdn_tree.triton_structure import device_tree

BOUND = 2e-6


@pytest.fixture
def reference():
    """SGLang's function on our arguments, where its wheel is unpacked."""
    try:
        sglang_reference.sglang_function()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    return sglang_reference.node_recurrent


@pytest.mark.parametrize(("shape", "nodes"), [("chain", 17), ("random", 33), ("wide", 17)], ids=lambda x: str(x))
def test_agrees_with_the_definition_and_with_ours(reference, shape, nodes, named_case, relative_rms):
    case = named_case(shape, nodes, value_dim=8)
    arguments = case.to(torch.float32)
    theirs = reference(**arguments)
    ours = triton_recurrent.node_recurrent(**arguments)
    for name in ("outputs", "states"):
        assert relative_rms(getattr(theirs, name), getattr(case, name)) < BOUND
        assert relative_rms(getattr(theirs, name), getattr(ours, name).double()) < BOUND
    assert theirs.pseudo_values.numel() == 0


def test_agrees_on_a_padded_tree_per_sequence(reference, named_case, relative_rms):
    arguments = named_case("random", 6, batch=3, value_dim=8).to(torch.float32)
    parents = torch.tensor([[-1, 0, 1, 1, 0, 4], [-1, 0, -1, 1, 3, -1], [-1, -1, -1, -1, -1, -1]])
    padding = (parents < 0).index_fill(1, torch.tensor(0), False)
    for name in ("q", "k", "v", "g", "beta"):
        arguments[name][padding] = float("nan")
    arguments["structure"] = device_tree(parents)
    arguments["state_indices"] = torch.tensor([2, -1, 0], dtype=torch.int32)
    theirs = reference(**arguments)
    ours = triton_recurrent.node_recurrent(**arguments)
    assert not theirs.outputs[padding].any()
    assert relative_rms(theirs.outputs, ours.outputs.double()) < BOUND
    assert relative_rms(theirs.states[~padding], ours.states[~padding].double()) < BOUND


def test_notices_a_wrong_parent(reference, named_case, relative_rms):
    case = named_case("random", 9, value_dim=8)
    arguments = case.to(torch.float32)
    wrong = case.structure.parents.clone()
    wrong[8] = (wrong[8] + 1) % 8
    outputs = reference(**{**arguments, "structure": device_tree(wrong)}).outputs
    assert relative_rms(outputs[:, :8], case.outputs[:, :8]) < BOUND
    assert relative_rms(outputs[:, 8], case.outputs[:, 8]) > 0.01


def test_gates_come_back(reference, named_case):
    """g exactly, beta within 1.2e-7: the price of passing it through SGLang's sigmoid."""
    arguments = named_case("chain", 65).to(torch.float32)
    passed = sglang_reference.sglang_arguments(**arguments)
    assert torch.equal(-passed["A_log"].exp() * (passed["a"] + passed["dt_bias"]), arguments["g"])
    assert (passed["b"].sigmoid() / arguments["beta"] - 1).abs().max() < 2.4e-7


def test_leaves_no_stand_in_behind(reference):
    assert not [name for name in sys.modules if name.partition(".")[0] == "sglang"]


def test_missing_folder_names_the_make_target(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_REFERENCE", str(tmp_path))
    with pytest.raises(RuntimeError, match="run `make sglang-reference`"):
        sglang_reference.node_recurrent()
