"""The Triton convolution, interpreted, against the walk over parents in fp64."""

from __future__ import annotations

import pytest
import torch

from kernels.gdn_tree import TreeStructure, naive_tree_causal_conv
from kernels.gdn_tree.triton_conv import tree_causal_conv
from kernels.gdn_tree.triton_structure import device_tree

BOUND = 1e-6
BF16_BOUND = 4e-3  # outputs are rounded to 8 bits: half a unit is 2 ** -9, relative
SHAPES = ["chain", "star", "caterpillar", "random", "wide", "mixed"]
TREES = [("anchor_only", 1), *((shape, nodes) for shape in SHAPES for nodes in (2, 33)), ("random", 65), ("wide", 129)]


@pytest.fixture(autouse=True)
def _poisoned_allocations(monkeypatch):
    empty = torch.empty

    def poisoned(*shape, **options):
        x = empty(*shape, **options)
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", poisoned)


def draw(nodes, *, batch=1, channels=20):
    return {
        "inputs": torch.randn(batch, nodes, channels),
        "window": torch.randn(batch, channels, 3),
        "weight": torch.randn(channels, 4),
    }


def oracle(inputs, parents):
    return naive_tree_causal_conv(**{name: x.double() for name, x in inputs.items()}, parents=parents)


@pytest.mark.parametrize(("shape", "nodes"), TREES, ids=lambda x: str(x))
def test_matches_definition(shape, nodes, make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents(shape, nodes)))
    inputs = draw(nodes, batch=2)
    window = inputs["window"].clone()
    outputs = tree_causal_conv(**inputs, structure=structure)
    assert relative_rms(outputs, oracle(inputs, structure.parents)) < BOUND
    assert torch.equal(inputs["window"], window)


def test_more_channels_than_a_block_and_bias(make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("mixed", 17)))
    inputs = draw(17, channels=300) | {"bias": torch.randn(300)}
    assert relative_rms(tree_causal_conv(**inputs, structure=structure), oracle(inputs, structure.parents)) < BOUND


def test_a_tree_per_sequence_with_padding(relative_rms):
    """Inputs are a slice of a wider projection, the window one layer of a buffer; padding rows hold NaN."""
    parents = torch.tensor([[-1, 0, 1, 2, 3, 0], [-1, 0, -1, 1, 3, -1], [-1, -1, -1, -1, -1, -1]])
    padding = (parents < 0).index_fill(1, torch.tensor(0), False)
    inputs = draw(6, batch=3) | {"bias": torch.randn(20)}
    inputs["inputs"] = torch.randn(3, 6, 50)[:, :, 10:30]
    inputs["window"] = torch.randn(3, 2, 20, 3)[:, 1]
    inputs["inputs"][padding] = float("nan")
    outputs = tree_causal_conv(**inputs, structure=device_tree(parents))
    assert not outputs[padding].any()
    for sequence, real in enumerate(~padding):
        rows = inputs | {name: inputs[name][sequence : sequence + 1] for name in ("inputs", "window")}
        rows["inputs"] = rows["inputs"][:, real]
        above = parents[sequence, real]
        expected = oracle(rows, torch.where(above < 0, -1, (real.cumsum(0) - 1)[above]))
        assert relative_rms(outputs[sequence, real], expected[0]) < BOUND


def test_bf16(make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("random", 17)))
    inputs = {name: x.bfloat16() for name, x in draw(17).items()}
    outputs = tree_causal_conv(**inputs, structure=structure)
    assert outputs.dtype == torch.bfloat16
    assert relative_rms(outputs, oracle(inputs, structure.parents)) < BF16_BOUND


def test_exactly_four_rows_matter():
    """A chain of 8: node 7 reads rows 4 to 7; node 1 reads rows 0, 1 and the two newest of the window."""
    structure = TreeStructure.from_parents(torch.arange(8) - 1)
    inputs = draw(8)
    reference = tree_causal_conv(**inputs, structure=structure)
    for row in range(8):
        changed = inputs["inputs"].clone()
        changed[:, row] += 1
        moved = (tree_causal_conv(**inputs | {"inputs": changed}, structure=structure) != reference).any(2)[0]
        assert moved.tolist() == [row <= node < row + 4 for node in range(8)]
    for place in range(3):
        changed = inputs["window"].clone()
        changed[:, :, place] += 1
        moved = (tree_causal_conv(**inputs | {"window": changed}, structure=structure) != reference).any(2)[0]
        assert moved.tolist() == [node <= place for node in range(8)]


@pytest.mark.parametrize("name", ["inputs", "window", "weight"])
def test_last_dimension_must_be_contiguous(name):
    inputs = draw(2)
    inputs[name] = torch.stack([inputs[name]] * 2, -1)[..., 0]
    with pytest.raises(ValueError, match=rf"^{name}: .*contiguous"):
        tree_causal_conv(**inputs, structure=TreeStructure.from_parents(torch.tensor([-1, 0])))
