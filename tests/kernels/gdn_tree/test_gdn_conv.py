"""Tree convolution against the explicit walk, and its committed window."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv1d, silu

from kernels.gdn_tree import TORCH, TreeStructure, commit_window, implementations, naive_tree_causal_conv

CHANNELS = 24
COMPILED = implementations(torch.device("cpu"))["compiled"]
CONVOLUTIONS = {"torch": TORCH.tree_causal_conv, "compiled": COMPILED.tree_causal_conv}


@pytest.fixture(params=CONVOLUTIONS, scope="module")
def convolve(request):
    if request.param == "compiled" and COMPILED.unavailable:
        pytest.skip(COMPILED.unavailable)
    return CONVOLUTIONS[request.param]


SHAPES = ["anchor_only", "chain", "star", "caterpillar", "random", "wide", "mixed"]


def conv_inputs(nodes, batch=2):
    generator = torch.Generator().manual_seed(nodes)
    shapes = {"inputs": (batch, nodes, CHANNELS), "window": (batch, CHANNELS, 3), "weight": (CHANNELS, 4)}
    return {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}


def upcast(tensors):
    return {name: x.double() for name, x in tensors.items()}


def agree(convolve, tensors, parents):
    structure = TreeStructure.from_parents(torch.tensor(parents))
    expected = naive_tree_causal_conv(**upcast(tensors), parents=structure.parents)
    actual = convolve(**tensors, structure=structure)
    assert (actual - expected).norm() / expected.norm() < 1e-6


@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 33, 65])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_the_walk(convolve, shape, nodes, with_bias, make_parents):
    tensors = conv_inputs(nodes)
    if with_bias:
        tensors["bias"] = torch.linspace(-1, 1, CHANNELS)
    before = tensors["window"].clone()
    agree(convolve, tensors, make_parents(shape, nodes))
    assert torch.equal(tensors["window"], before)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_tree_matches_the_walk(convolve, data):
    nodes = data.draw(st.integers(1, 24))
    agree(convolve, conv_inputs(nodes), [-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, nodes))])


def test_walk_on_a_chain_is_a_convolution():
    tensors = upcast(conv_inputs(12))
    sequence = torch.cat([tensors["window"], tensors["inputs"].transpose(1, 2)], 2)
    expected = silu(conv1d(sequence, tensors["weight"].unsqueeze(1), groups=CHANNELS)).transpose(1, 2)
    actual = naive_tree_causal_conv(**tensors, parents=torch.arange(12) - 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_only_ancestors_matter(convolve, make_parents):
    tensors = conv_inputs(33)
    structure = TreeStructure.from_parents(torch.tensor(make_parents("random", 33)))
    node = int(structure.depths.argmax())
    near = structure.path_to(node)[-4:]
    reference = convolve(**tensors, structure=structure)[:, node]

    def perturbed(rows):
        inputs = tensors["inputs"].clone()
        inputs[:, rows] += 1
        return convolve(**tensors | {"inputs": inputs}, structure=structure)[:, node]

    others = torch.ones(33, dtype=torch.bool).index_fill(0, torch.tensor(near), False)
    assert torch.equal(perturbed(others), reference)
    for ancestor in near:
        assert not torch.equal(perturbed(ancestor), reference)


@pytest.mark.parametrize("length", range(1, 7))
def test_committed_window(length, make_parents):
    """The window is the tail of (old window, path inputs); off-path rows hold NaN and are not read."""
    tensors = conv_inputs(17)
    structure = TreeStructure.from_parents(torch.tensor(make_parents("caterpillar", 17)))
    leaf = next(node for node in reversed(range(17)) if len(structure.path_to(node)) == length)
    path = torch.tensor(structure.path_to(leaf))
    inputs = torch.full_like(tensors["inputs"], float("nan"))
    inputs[:, path] = tensors["inputs"][:, path]
    expected = torch.cat([tensors["window"], inputs[:, path].transpose(1, 2)], 2)[:, :, -3:]
    buffer = torch.stack([tensors["window"]] * 3)
    commit_window(inputs=inputs, path=path, window=buffer[1])
    assert torch.equal(buffer[1], expected)
    assert torch.equal(buffer[0], tensors["window"])


def test_rounds_continue_the_sequence(convolve):
    """Two chains with a commit between them equal one long chain."""
    tensors = conv_inputs(9)
    whole = convolve(**tensors, structure=TreeStructure.from_parents(torch.arange(9) - 1))
    window, parts = tensors["window"].clone(), []
    for part in tensors["inputs"].split([2, 7], 1):
        structure = TreeStructure.from_parents(torch.arange(part.shape[1]) - 1)
        parts.append(convolve(inputs=part, window=window, weight=tensors["weight"], structure=structure))
        commit_window(inputs=part, path=torch.arange(part.shape[1]), window=window)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_silu_far_from_zero(convolve):
    """Pre-activations up to ±200: the exponential of a large positive number once wrapped around."""
    tensors = conv_inputs(5)
    tensors["inputs"][:, :, :] = torch.linspace(-200, 200, CHANNELS)
    tensors["weight"] = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(CHANNELS, 4).contiguous()
    structure = TreeStructure.from_parents(torch.arange(5) - 1)
    actual = convolve(**tensors, structure=structure)
    torch.testing.assert_close(actual, silu(tensors["inputs"]), rtol=1e-6, atol=1e-30)
