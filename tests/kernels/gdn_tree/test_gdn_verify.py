"""Every verification method against the node-by-node definition in fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gdn_tree import TORCH, implementations

SHAPES = ["chain", "star", "caterpillar", "random", "wide", "mixed"]
TREES = [("anchor_only", 1), *((shape, nodes) for shape in SHAPES for nodes in (2, 31, 32, 33, 64, 65, 128, 129))]
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-12}
COMPILED = implementations(torch.device("cpu"))["compiled"]
FAST = {} if COMPILED.unavailable else {f"compiled_{name}": method for name, method in COMPILED.verify.items()}
VERIFY = TORCH.verify | FAST
STORING = {"level_recurrent", "node_recurrent", "compiled_node_recurrent"}
METHODS = pytest.mark.parametrize("method", VERIFY)
PRECISIONS = [*((method, dtype) for method in TORCH.verify for dtype in BOUNDS), *((x, torch.float32) for x in FAST)]


@pytest.mark.parametrize(("shape", "nodes"), TREES, ids=str)
@pytest.mark.parametrize(("method", "dtype"), PRECISIONS, ids=str)
def test_matches_definition(method, shape, nodes, dtype, named_case, relative_rms):
    case = named_case(shape, nodes)
    result = VERIFY[method](**case.to(dtype))
    assert result.outputs.dtype == dtype
    assert relative_rms(result.outputs, case.outputs) < BOUNDS[dtype]
    assert relative_rms(result.pseudo_values, case.pseudo_values) < BOUNDS[dtype]


@METHODS
def test_bound_notices_a_small_error(method, named_case, relative_rms):
    case = named_case("random", 33)
    arguments = case.to(torch.float32)
    arguments["beta"] = arguments["beta"] * (1 + 1e-5)
    assert relative_rms(VERIFY[method](**arguments).outputs, case.outputs) > BOUNDS[torch.float32]


@pytest.mark.parametrize("shape", SHAPES)
@METHODS
def test_batch_and_unequal_dims(method, shape, named_case, relative_rms):
    case = named_case(shape, 17, batch=2, value_dim=48)
    result = VERIFY[method](**case.to(torch.float32))
    assert relative_rms(result.outputs, case.outputs) < 2e-6
    assert relative_rms(result.pseudo_values, case.pseudo_values) < 2e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", sorted(STORING & VERIFY.keys()))
def test_stored_states(method, shape, named_case, relative_rms):
    case = named_case(shape, 33, batch=2, value_dim=48)
    states = VERIFY[method](**case.to(torch.float32)).states
    assert states.shape == case.states.shape
    assert relative_rms(states, case.states) < 2e-6


def test_level_order_that_is_its_own_inverse(make_case, relative_rms):
    """Once taken for a tree in level order, because sorting by depth only swaps two nodes."""
    case = make_case([-1, 0, 1, 0])
    result = VERIFY["level_recurrent"](**case.to(torch.float64))
    assert relative_rms(result.outputs, case.outputs) < 1e-12
    assert relative_rms(result.states, case.states) < 1e-12


@pytest.mark.parametrize("method", sorted(VERIFY.keys() - STORING))
def test_no_state_per_node(method, named_case):
    assert VERIFY[method](**named_case("random", 33).to(torch.float32)).states is None


@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@METHODS
def test_extreme_decay(method, shape, share, make_parents, make_case, relative_rms):
    """Some or all nodes forget everything (e^-80): exponents between siblings overflow, path sums reach -10^4."""
    nodes = 129
    generator = torch.Generator().manual_seed(0)
    mild = -torch.rand(1, nodes, 6, generator=generator)
    g = torch.where(torch.rand(1, nodes, 6, generator=generator) < share, -80.0, mild)
    case = make_case(make_parents(shape, nodes), g=g)
    sums = case.structure.ancestors.to(g.dtype) @ g
    if shape != "star":
        assert (sums.unsqueeze(2) - sums.unsqueeze(1)).max().exp().isinf()
    result = VERIFY[method](**case.to(torch.float32))
    assert result.outputs.isfinite().all()
    assert relative_rms(result.outputs, case.outputs) < 2e-6
    assert relative_rms(result.pseudo_values, case.pseudo_values) < 2e-6


@METHODS
def test_scale(method, named_case, relative_rms):
    case = named_case("mixed", 17)
    result = VERIFY[method](**case.to(torch.float32), scale=1.0)
    assert relative_rms(result.outputs, case.outputs * case.inputs["k"].shape[-1] ** 0.5) < 2e-6


@METHODS
def test_only_ancestors_matter(method, named_case):
    """Rows off the path of a node change nothing at that node, to the bit; each row on its path changes something."""
    case = named_case("random", 33)
    arguments = case.to(torch.float32)
    node = int(case.structure.depths.argmax())
    path = case.structure.path_to(node)
    reference = VERIFY[method](**arguments).outputs[:, node]
    others = torch.ones(33, dtype=torch.bool).index_fill(0, torch.tensor(path), False)

    def perturbed(rows):
        changed = {name: arguments[name].clone() for name in ("q", "k", "v", "g", "beta")}
        for x in changed.values():
            x[:, rows] *= 0.5
        return VERIFY[method](**{**arguments, **changed}).outputs[:, node]

    assert torch.equal(perturbed(others), reference)
    for ancestor in path:
        assert (perturbed(ancestor) - reference).abs().max() > 1e-6


@METHODS
def test_initial_state_is_read_only(method, named_case):
    arguments = named_case("random", 33).to(torch.float32)
    before = arguments["initial_state"].clone()
    VERIFY[method](**arguments)
    assert torch.equal(arguments["initial_state"], before)


@METHODS
def test_chain_equals_the_library(method, named_case, relative_rms):
    """On a chain the tree methods are the ordinary rule: both forms that transformers has of it agree."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

    case = named_case("chain", 65, batch=2, value_dim=48)
    arguments = case.to(torch.float32)
    q, k = (arguments[name].repeat_interleave(3, 2) for name in ("q", "k"))
    outputs = VERIFY[method](**arguments).outputs
    shared = {name: arguments[name] for name in ("v", "g", "beta", "initial_state")}
    shared["value"] = shared.pop("v")
    for rule in (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule):
        expected, state = rule(q, k, **shared, output_final_state=True)
        assert relative_rms(outputs, expected.double()) < 2e-6
        assert relative_rms(state, case.states[:, -1]) < 2e-6


@METHODS
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tree(method, data, make_case, relative_rms):
    nodes = data.draw(st.integers(1, 24))
    case = make_case([-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, nodes))])
    dtype = torch.float32 if method in FAST else torch.float64
    result, bound = VERIFY[method](**case.to(dtype)), BOUNDS[dtype]
    assert relative_rms(result.outputs, case.outputs) < bound
    assert relative_rms(result.pseudo_values, case.pseudo_values) < bound
    if result.states is not None:
        assert relative_rms(result.states, case.states) < bound
