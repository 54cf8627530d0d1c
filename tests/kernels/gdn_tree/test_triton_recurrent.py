"""The Triton recurrence, interpreted, against the node-by-node definition in fp64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import TreeStructure, fused_tree_gated_delta_rule, naive_tree_gated_delta_rule
from kernels.gdn_tree.triton_recurrent import node_recurrent
from kernels.gdn_tree.triton_structure import device_tree

BOUND = 2e-6
BF16_BOUND = 4e-3  # outputs are rounded to 8 bits: half a unit is 2 ** -9, relative
TREES = [
    ("anchor_only", 1),
    ("chain", 2),
    ("random", 31),
    ("star", 32),
    ("caterpillar", 33),
    ("mixed", 64),
    ("wide", 65),
    ("chain", 128),
    ("random", 129),
]
PADDED = [[-1, 0, 1, 0, 3, 3, 0], [-1, 0, -1, 1, 3, -1, 0], [-1, -1, -1, -1, -1, -1, -1]]


@pytest.fixture(autouse=True)
def _poisoned_allocations(monkeypatch):
    empty = torch.empty

    def poisoned(*shape, **options):
        x = empty(*shape, **options)
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", poisoned)


def draw(nodes, *, batch=1, heads=1, value_heads=2, key_dim=16, value_dim=8, pool=None):
    return {
        "q": normalize(torch.randn(batch, nodes, heads, key_dim), dim=-1),
        "k": normalize(torch.randn(batch, nodes, heads, key_dim), dim=-1),
        "v": torch.randn(batch, nodes, value_heads, value_dim),
        "g": -softplus(torch.randn(batch, nodes, value_heads) - 1),
        "beta": torch.randn(batch, nodes, value_heads).sigmoid(),
        "initial_state": torch.randn(pool or batch, value_heads, key_dim, value_dim),
    }


def oracle(inputs, parents):
    """Outputs, pseudo-values and states in fp64; pseudo-values from the torch solve, itself tested to 1e-12."""
    exact = {name: x.double() for name, x in inputs.items()}
    outputs, states = naive_tree_gated_delta_rule(**exact, parents=parents)
    solved = fused_tree_gated_delta_rule(**exact, structure=TreeStructure.from_parents(parents))
    return outputs, solved.pseudo_values, states


@pytest.mark.parametrize(("shape", "nodes"), TREES, ids=lambda x: str(x))
def test_matches_definition(shape, nodes, make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents(shape, nodes)))
    inputs = draw(nodes)
    result = node_recurrent(**inputs, structure=structure)
    for actual, expected in zip(result, oracle(inputs, structure.parents), strict=True):
        assert actual.shape == expected.shape
        assert relative_rms(actual, expected) < BOUND


def test_full_size_heads(relative_rms):
    structure = TreeStructure.from_parents(torch.tensor([-1, 0, 0]))
    inputs = draw(3, value_heads=1, key_dim=128, value_dim=128)
    result = node_recurrent(**inputs, structure=structure)
    for actual, expected in zip(result, oracle(inputs, structure.parents), strict=True):
        assert relative_rms(actual, expected) < BOUND


def test_a_tree_per_sequence_with_padding(relative_rms):
    """Odd dims, grouped heads, entries of a state pool, q, k and v as slices of one projection, NaN in padding rows."""
    inputs = draw(7, batch=3, heads=2, value_heads=4, key_dim=24, value_dim=20, pool=5)
    inputs["initial_state"] = inputs["initial_state"][1:]
    parts = [inputs[name].flatten(2) for name in "qkv"]
    q, k, v = torch.cat(parts, 2).split([x.shape[2] for x in parts], 2)
    inputs |= {"q": q.unflatten(2, (2, -1)), "k": k.unflatten(2, (2, -1)), "v": v.unflatten(2, (4, -1))}
    parents = torch.tensor(PADDED)
    padding = (parents < 0).index_fill(1, torch.tensor(0), False)
    clean = {name: x.clone() for name, x in inputs.items()}
    for name in ("q", "k", "v", "g", "beta"):
        inputs[name][padding] = float("nan")
    entries = torch.tensor([2, -1, 0], dtype=torch.int32)
    result = node_recurrent(**inputs, structure=device_tree(parents), state_indices=entries)
    assert torch.equal(inputs["initial_state"], clean["initial_state"])
    assert not result.outputs[padding].any()
    assert not result.pseudo_values[padding].any()
    assert result.states[padding].isnan().all()
    pool = torch.cat([clean["initial_state"], torch.zeros(1, 4, 24, 20)])
    for sequence, real in enumerate(~padding):
        rows = {name: x[sequence : sequence + 1, real] for name, x in clean.items() if name != "initial_state"}
        rows["initial_state"] = pool[entries[sequence : sequence + 1]]
        places = real.cumsum(0) - 1
        above = parents[sequence, real]
        expected = oracle(rows, torch.where(above < 0, -1, places[above]))
        for actual, exact in zip(result, expected, strict=True):
            assert relative_rms(actual[sequence, real], exact[0]) < BOUND


def test_one_tree_for_the_batch(make_parents, relative_rms):
    parents = torch.tensor(make_parents("random", 9))
    inputs = draw(9, batch=2)
    shared = node_recurrent(**inputs, structure=device_tree(parents))
    assert torch.equal(shared.states, node_recurrent(**inputs, structure=device_tree(parents.repeat(2, 1))).states)
    assert relative_rms(shared.outputs, oracle(inputs, parents)[0]) < BOUND


def test_bf16(make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("mixed", 17)))
    inputs = draw(17)
    inputs |= {name: inputs[name].bfloat16() for name in "qkv"}
    result = node_recurrent(**inputs, structure=structure)
    outputs, pseudo_values, states = oracle(inputs, structure.parents)
    assert result.outputs.dtype == torch.bfloat16
    assert relative_rms(result.outputs, outputs) < BF16_BOUND
    assert relative_rms(result.pseudo_values, pseudo_values) < BOUND
    assert relative_rms(result.states, states) < BOUND


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_extreme_decay(share, make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("mixed", 33)))
    inputs = draw(33)
    inputs["g"] = torch.where(torch.rand(1, 33, 2) < share, -80.0, inputs["g"])
    result = node_recurrent(**inputs, structure=structure)
    for actual, expected in zip(result, oracle(inputs, structure.parents), strict=True):
        assert relative_rms(actual, expected) < BOUND


def test_scale_and_a_small_error(make_parents, relative_rms):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("wide", 9)))
    inputs = draw(9)
    outputs = node_recurrent(**inputs, structure=structure, scale=0.5).outputs
    expected, _, _ = oracle(inputs, structure.parents)
    assert relative_rms(outputs, 2 * expected) < BOUND
    inputs["beta"] = inputs["beta"] * (1 + 1e-5)
    assert relative_rms(node_recurrent(**inputs, structure=structure).outputs, expected) > BOUND


def test_only_ancestors_matter(make_parents):
    """Rows off the path of a node change nothing at it, to the bit; each row on its path changes something."""
    structure = TreeStructure.from_parents(torch.tensor(make_parents("mixed", 14)))
    path = structure.path_to(13)
    inputs = draw(14)
    reference = node_recurrent(**inputs, structure=structure).outputs[:, 13]
    others = torch.ones(14, dtype=torch.bool).index_fill(0, torch.tensor(path), False)

    def perturbed(rows):
        changed = {name: inputs[name].clone() for name in ("q", "k", "v", "g", "beta")}
        for x in changed.values():
            x[:, rows] *= 0.5
        return node_recurrent(**{**inputs, **changed}, structure=structure).outputs[:, 13]

    assert torch.equal(perturbed(others), reference)
    for ancestor in path:
        assert (perturbed(ancestor) - reference).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "initial_state"])
def test_last_dimension_must_be_contiguous(name):
    inputs = draw(2)
    inputs[name] = torch.stack([inputs[name]] * 2, -1)[..., 0]
    with pytest.raises(ValueError, match=rf"^{name}: .*contiguous"):
        node_recurrent(**inputs, structure=TreeStructure.from_parents(torch.tensor([-1, 0])))
