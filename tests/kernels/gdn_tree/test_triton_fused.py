"""The Triton tree solve, interpreted, against the node-by-node definition in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import TreeStructure, fused, naive, triton_fused, triton_solve, triton_structure
from kernels.gdn_tree.triton_fused import fused_tree_gated_delta_rule
from kernels.gdn_tree.triton_structure import device_tree

BOUND = 2e-6
BF16_BOUND = 4e-3  # outputs are rounded to 8 bits: half a unit is 2 ** -9, relative
SHAPES = ["chain", "star", "random", "wide", "mixed"]
TREES = [("anchor_only", 1), *((shape, nodes) for shape in SHAPES for nodes in (2, 31, 32, 33, 64, 65, 128, 129))]
TREES.remove(("chain", 128))  # takes seconds
BOTH_PATHS = pytest.mark.parametrize("nodes", [20, 37])  # one tile; two launches


@pytest.fixture(autouse=True)
def allocated(monkeypatch):
    """Whatever is allocated holds NaN, or a number that no tree holds; all of it is listed."""
    empty, taken = torch.empty, []

    def poisoned(*shape, **options):
        taken.append(empty(*shape, **options))
        return taken[-1].fill_(float("nan") if taken[-1].is_floating_point() else -(2**30))

    monkeypatch.setattr(torch, "empty", poisoned)
    return taken


def draw(nodes, *, batch=1, heads=1, value_heads=3, key_dim=16, value_dim=16, pool=None):
    return {
        "q": normalize(torch.randn(batch, nodes, heads, key_dim), dim=-1),
        "k": normalize(torch.randn(batch, nodes, heads, key_dim), dim=-1),
        "v": torch.randn(batch, nodes, value_heads, value_dim),
        "g": -softplus(torch.randn(batch, nodes, value_heads) - 1),
        "beta": torch.randn(batch, nodes, value_heads).sigmoid(),
        "initial_state": torch.randn(pool or batch, value_heads, key_dim, value_dim),
    }


def oracle(inputs, parents, **options):
    """Outputs and pseudo-values in fp64; pseudo-values from the torch solve, itself tested to 1e-12."""
    exact = {name: x.double() for name, x in inputs.items()}
    outputs, _ = naive.naive_tree_gated_delta_rule(**exact, parents=parents, **options)
    solved = fused.fused_tree_gated_delta_rule(**exact, structure=TreeStructure.from_parents(parents), **options)
    return outputs, solved.pseudo_values


@pytest.fixture
def check(relative_rms):
    """Runs the kernel on fp32 inputs, compares both results with the oracle, and the inputs with what they were."""

    def compare(inputs, parents, **options):
        before = {name: x.clone() for name, x in inputs.items()}
        result = fused_tree_gated_delta_rule(**inputs, structure=TreeStructure.from_parents(parents), **options)
        outputs, pseudo_values = oracle(inputs, parents, **options)
        assert relative_rms(result.outputs, outputs) < BOUND
        assert relative_rms(result.pseudo_values, pseudo_values) < BOUND
        assert all(torch.equal(inputs[name], x) for name, x in before.items())
        return result

    return compare


@pytest.mark.parametrize(("shape", "nodes"), TREES, ids=lambda x: str(x))
def test_matches_definition(shape, nodes, make_parents, check):
    result = check(draw(nodes, value_heads=2), torch.tensor(make_parents(shape, nodes)))
    assert result.outputs.dtype == result.pseudo_values.dtype == torch.float32
    assert result.states is None


@BOTH_PATHS
def test_bound_notices_a_small_error(nodes, make_parents, relative_rms):
    parents, inputs = torch.tensor(make_parents("random", nodes)), draw(nodes)
    expected, _ = oracle(inputs, parents)
    inputs["beta"] = inputs["beta"] * (1 + 1e-5)
    result = fused_tree_gated_delta_rule(**inputs, structure=TreeStructure.from_parents(parents))
    assert relative_rms(result.outputs, expected) > BOUND


@BOTH_PATHS
@pytest.mark.parametrize("precision", ["ieee", "tf32x3", "tf32"])
def test_bf16_inputs(nodes, precision, make_parents, relative_rms):
    """The interpreter computes every precision in fp32: only what the launches make of it is tested."""
    parents, inputs = torch.tensor(make_parents("random", nodes)), draw(nodes)
    inputs |= {name: inputs[name].bfloat16() for name in "qkv"}
    structure = TreeStructure.from_parents(parents)
    result = fused_tree_gated_delta_rule(**inputs, structure=structure, precision=precision)
    outputs, pseudo_values = oracle(inputs, parents)
    assert result.outputs.dtype == torch.bfloat16
    assert relative_rms(result.outputs, outputs) < BF16_BOUND
    assert relative_rms(result.pseudo_values, pseudo_values) < BOUND


@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 24), (24, 16), (64, 80), (8, 8)])
@pytest.mark.parametrize("group", [1, 3])
@BOTH_PATHS
def test_heads_and_dims(nodes, group, key_dim, value_dim, make_parents, check):
    both = 2 if value_dim == 24 else 1  # two key heads, and two sequences that share a tree
    inputs = draw(nodes, batch=both, heads=both, value_heads=both * group, key_dim=key_dim, value_dim=value_dim)
    check(inputs, torch.tensor(make_parents("random", nodes)), scale=0.3)


@BOTH_PATHS
def test_batch_of_different_trees(nodes, make_parents, relative_rms):
    """Padding at the end and in between, all of it NaN; states from a pool, NaN where nobody may look."""
    sizes = {"chain": nodes, "random": nodes - 5, "star": 3}
    parents = torch.full((3, nodes), -1)
    for row, (shape, size) in zip(parents, sizes.items(), strict=True):
        row[:size] = torch.tensor(make_parents(shape, size))
    parents[1, 7] = -1
    parents[1][parents[1] == 7] = 0
    padding = (parents < 0) & (torch.arange(nodes) > 0)
    inputs = draw(nodes, batch=3, pool=5)
    for name in ("q", "k", "v", "g", "beta"):
        inputs[name][padding] = float("nan")
    pool = inputs["initial_state"]
    pool[[1, 2, 3]] = float("nan")
    indices = torch.tensor([4, -1, 0], dtype=torch.int32)
    result = fused_tree_gated_delta_rule(**inputs, structure=device_tree(parents), state_indices=indices)
    states = [pool[4], torch.zeros_like(pool[0]), pool[0]]
    for row in range(3):
        alone = {name: torch.nan_to_num(x[row : row + 1]) for name, x in inputs.items()}
        expected = oracle(alone | {"initial_state": states[row].unsqueeze(0)}, parents[row])
        for actual, exact in zip(result[:2], expected, strict=True):
            real = ~padding[row]
            assert relative_rms(actual[row, real], exact[0, real]) < BOUND
            assert actual[row, padding[row]].eq(0).all()


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize(("shape", "nodes"), [("star", 20), ("random", 32), ("random", 65), ("mixed", 70)])
def test_extreme_decay(shape, nodes, share, make_parents, check):
    """Some or all nodes forget everything (e^-80): exponents between branches overflow, path sums reach -10^3."""
    parents, inputs = torch.tensor(make_parents(shape, nodes)), draw(nodes)
    inputs["g"] = torch.where(torch.rand_like(inputs["g"]) < share, -80.0, inputs["g"])
    sums = TreeStructure.from_parents(parents).ancestors.float() @ inputs["g"]
    assert shape == "star" or (sums.unsqueeze(2) - sums.unsqueeze(1)).max().exp().isinf()
    check(inputs, parents)


@pytest.mark.parametrize("agreement", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("nodes", [32, 64])
def test_keys_alike(nodes, agreement, make_parents, check):
    """Powers of the update reach C(31, 15) here and cancel: summing them loses everything at 0.9."""
    inputs = draw(nodes, key_dim=64)
    mixed = agreement**0.5 * inputs["k"][:, :1] + (1 - agreement) ** 0.5 * inputs["k"]
    inputs |= {"k": normalize(mixed, dim=-1), "beta": torch.ones_like(inputs["beta"]), "g": inputs["g"] * 0}
    check(inputs, torch.tensor(make_parents("chain", nodes)))


@BOTH_PATHS
def test_strided_inputs(nodes, make_parents, check):
    """Rows of one packed projection, heads first, and every second state of a pool."""
    inputs = draw(nodes)
    packed = torch.cat([inputs[name].flatten(2) for name in ("q", "k", "v", "g", "beta")], 2)
    q, k, v, g, beta = packed.split([16, 16, 48, 3, 3], 2)
    state = torch.randn(3, 2, 16, 32).transpose(0, 1)[:1, ..., :16]
    heads_first = v.unflatten(2, (3, 16)).transpose(1, 2).contiguous().transpose(1, 2)
    strided = {"q": q.unsqueeze(2), "k": k.unsqueeze(2), "v": heads_first, "g": g, "beta": beta}
    assert not any(x.is_contiguous() for x in (*strided.values(), state))
    check({**strided, "initial_state": state}, torch.tensor(make_parents("mixed", nodes)))


def test_panels_without_an_ancestor_pair_are_neither_written_nor_read(allocated, check):
    """Three branches of 32 nodes, one per tile: tiles (2, 1), (3, 1) and (3, 2) hold no pair and stay poisoned."""
    parents = torch.arange(-1, 127)
    parents[[32, 64, 96]] = 0
    check(draw(128), parents)
    (panels,) = (x for x in allocated if x.dim() == 3 and x.shape[-1] == 64 * 32)
    untouched = panels.isnan().all(-1)
    assert panels[~untouched].isfinite().all()
    assert untouched.all(0).nonzero().flatten().tolist() == [4 + 2, 4 + 4, 4 + 5]
    assert untouched.any(0).sum() == 3


@pytest.mark.parametrize("nodes", [21, 70])
def test_only_ancestors_matter(nodes, make_parents):
    parents, inputs = torch.tensor(make_parents("random", nodes)), draw(nodes)
    structure = TreeStructure.from_parents(parents)
    before = fused_tree_gated_delta_rule(**inputs, structure=structure).outputs
    changed = nodes // 2
    for name in ("q", "k", "v", "g", "beta"):
        inputs[name][:, changed] *= 0.5
    after = fused_tree_gated_delta_rule(**inputs, structure=structure).outputs
    moved = (before != after).flatten(2).any(2)[0]
    assert torch.equal(moved, structure.ancestors[:, changed])


@BOTH_PATHS
def test_depth_is_only_a_bound(nodes, make_parents):
    parents, inputs = torch.tensor(make_parents("wide", nodes)), draw(nodes)
    depths = TreeStructure.from_parents(parents).depths
    trees = (device_tree(parents, max_depth=bound) for bound in (int(depths.max()), None))
    tight, loose = (fused_tree_gated_delta_rule(**inputs, structure=tree) for tree in trees)
    assert torch.equal(tight.outputs, loose.outputs)
    assert torch.equal(tight.pseudo_values, loose.pseudo_values)


@pytest.mark.parametrize(("nodes", "grids"), [(32, [(2, 96)]), (65, [(3 * 3 + 3, 32), (2, 96)])])
def test_host_never_looks_at_data(nodes, grids, monkeypatch):
    """Tensors of the meta device hold no data: item, tolist, cpu, numpy or bool of one raises. Kernels are stubs."""
    launches = []

    class Stub:
        def __getitem__(self, grid):
            launches.append(grid)
            return lambda *arguments, **constants: None

    monkeypatch.setattr(triton_structure, "_ancestor_words", Stub())
    monkeypatch.setattr(triton_fused, "_single_kernel", Stub())
    for name in ("_panels_kernel", "_solve_kernel"):
        monkeypatch.setattr(triton_solve, name, Stub())
    inputs = {name: x.to("meta") for name, x in draw(nodes, batch=2, heads=16, value_heads=48, value_dim=128).items()}
    tree = device_tree(torch.empty(2, nodes, dtype=torch.int32, device="meta"), max_depth=15)
    indices = torch.empty(2, dtype=torch.int32, device="meta")
    fused_tree_gated_delta_rule(**inputs, structure=tree, state_indices=indices)
    assert launches == [(2, -(-nodes // 32)), *grids]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "fp8"}, "precision: 'fp8' is none of ieee, tf32x3, tf32"),
        ({"structure": TreeStructure.from_parents(torch.arange(-1, 4))}, "structure: 1 trees of 5 nodes"),
        ({"structure": device_tree(torch.arange(-1, 3).expand(3, 4))}, "structure: 3 trees of 4 nodes; v has 2"),
        ({"q": torch.randn(2, 4, 1, 32)[..., ::2]}, "q: shape"),
    ],
)
def test_refuses(change, message):
    arguments = draw(4, batch=2) | {"structure": TreeStructure.from_parents(torch.arange(-1, 3))} | change
    with pytest.raises(ValueError, match=message):
        fused_tree_gated_delta_rule(**arguments)


@settings(max_examples=15)
@given(data=st.data())
def test_any_tree(data, relative_rms):
    nodes = data.draw(st.integers(1, 40))
    parents = torch.tensor([-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, nodes))])
    inputs = draw(nodes, value_heads=1)
    result = fused_tree_gated_delta_rule(**inputs, structure=device_tree(parents))
    for actual, exact in zip(result[:2], oracle(inputs, parents), strict=True):
        assert relative_rms(actual, exact) < BOUND
