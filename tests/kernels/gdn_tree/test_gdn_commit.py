"""The three commits against the definition's state at the accepted leaf."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gdn_tree import TORCH, implementations, naive_tree_gated_delta_rule

COMPILED = implementations(torch.device("cpu"))["compiled"]
FAST = {} if COMPILED.unavailable else {f"compiled_{name}": COMPILED.commit[name] for name in ("replay", "fold")}
COMMIT = TORCH.commit | FAST
VERIFY = TORCH.verify
SHAPES = ["chain", "star", "caterpillar", "random", "wide", "mixed"]
READS = {"replay": ("k", "v", "g", "beta"), "fold": ("k", "pseudo_values", "g"), "select": ("states",)}
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-12}


def plain(name):
    return name.removeprefix("compiled_")


def commit(name, method, arguments, path, state):
    """Verifies with `method`, then commits by `name`; rows off the path are poisoned in between."""
    result = VERIFY[method](**arguments)
    off_path = torch.ones(len(arguments["structure"].parents), dtype=torch.bool).index_fill(0, path, False)
    rows = {x: arguments[x].clone() for x in ("k", "v", "g", "beta")} | {"pseudo_values": result.pseudo_values.clone()}
    for x in rows.values():
        x[:, off_path] = float("nan")
    if name == "select":
        rows = {"states": result.states.clone()}
        rows["states"][:, off_path] = float("nan")
    COMMIT[name](**{x: rows[x] for x in READS[plain(name)]}, path=path, state=state)


PAIRS = [
    ("replay", "fused"),
    *(("fold", method) for method in VERIFY),
    *((name, "fused") for name in FAST),
    ("select", "node_recurrent"),
    ("select", "level_recurrent"),
]


WAYS = pytest.mark.parametrize(("name", "method"), PAIRS, ids=lambda x: x)
PRECISE_WAYS = [(*pair, dtype) for pair in PAIRS for dtype in BOUNDS if pair[0] not in FAST or dtype is torch.float32]


@pytest.mark.parametrize("nodes", [1, 2, 33, 65])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "method", "dtype"), PRECISE_WAYS, ids=str)
def test_commit_reaches_the_leaf_state(name, method, shape, nodes, dtype, named_case, relative_rms):
    """Off-path rows hold NaN at commit, so they must be skipped, not multiplied by zero."""
    case = named_case(shape, nodes)
    arguments = case.to(dtype)
    for leaf in {0, nodes // 2, nodes - 1}:
        state = arguments["initial_state"].clone()
        commit(name, method, arguments, torch.tensor(case.structure.path_to(leaf)), state)
        assert relative_rms(state, case.states[:, leaf]) < BOUNDS[dtype]


@pytest.mark.parametrize("row", ["k", "v", "g", "beta"])
def test_rows_on_the_path_are_read(row, named_case):
    case = named_case("random", 33)
    arguments = case.to(torch.float32)
    path = torch.tensor(case.structure.path_to(32))
    arguments[row][:, path[-1]] = float("nan")
    state = arguments["initial_state"].clone()
    COMMIT["replay"](**{x: arguments[x] for x in READS["replay"]}, path=path, state=state)
    assert state.isnan().any()


@WAYS
def test_layers_travel_in_the_batch(name, method, named_case, relative_rms):
    """The engine commits all layers at once: a slice of a larger buffer, written where it lies."""
    case = named_case("mixed", 33, batch=3, value_dim=48)
    arguments = case.to(torch.float32)
    buffer = torch.zeros(5, 6, 16, 48)
    buffer[1:4] = arguments["initial_state"]
    commit(name, method, arguments, torch.tensor(case.structure.path_to(31)), buffer[1:4])
    assert relative_rms(buffer[1:4], case.states[:, 31]) < 2e-6
    assert not buffer[0].any()
    assert not buffer[4].any()


@pytest.mark.parametrize("name", [name for name in COMMIT if name != "select"])
def test_state_that_cannot_be_written_in_place_is_refused(name, named_case):
    case = named_case("chain", 2, batch=2)
    arguments = case.to(torch.float32)
    state = arguments["initial_state"].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(RuntimeError, match=r"view|contiguous"):
        commit(name, "fused", arguments, torch.tensor([0, 1]), state)


@WAYS
def test_rounds_follow_one_another(name, method, named_case, relative_rms):
    """Three rounds on paths that are no prefix of their tree equal one recurrence over the accepted rows."""
    accepted: list[dict[str, torch.Tensor]] = []
    state = named_case("random", 33).to(torch.float32)["initial_state"].clone()
    initial = state.double()
    for shape, nodes, leaf in (("random", 33, 31), ("mixed", 17, 14), ("wide", 65, 60)):
        case = named_case(shape, nodes)
        path = torch.tensor(case.structure.path_to(leaf))
        assert path.tolist() != list(range(len(path)))
        accepted.append({x: case.inputs[x][:, path] for x in ("q", "k", "v", "g", "beta")})
        commit(name, method, case.to(torch.float32) | {"initial_state": state.clone()}, path, state)
    rows = {x: torch.cat([part[x] for part in accepted], 1) for x in accepted[0]}
    parents = torch.arange(rows["k"].shape[1]) - 1
    _, states = naive_tree_gated_delta_rule(**rows, parents=parents, initial_state=initial)
    assert relative_rms(state, states[:, -1]) < 2e-6


@pytest.mark.parametrize("name", [name for name in COMMIT if name != "select"])
def test_commit_under_extreme_decay(name, make_parents, make_case, relative_rms):
    g = torch.full((1, 65, 6), -0.01)
    g[:, ::3] = -80.0
    case = make_case(make_parents("chain", 65), g=g)
    arguments = case.to(torch.float32)
    state = arguments["initial_state"].clone()
    commit(name, "fused", arguments, torch.arange(65), state)
    assert relative_rms(state, case.states[:, -1]) < 2e-6


@WAYS
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_leaf_of_any_tree(name, method, data, make_case, relative_rms):
    nodes = data.draw(st.integers(1, 24))
    case = make_case([-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, nodes))])
    leaf = data.draw(st.integers(0, nodes - 1))
    dtype = torch.float32 if name in FAST else torch.float64
    arguments = case.to(dtype)
    state = arguments["initial_state"].clone()
    commit(name, method, arguments, torch.tensor(case.structure.path_to(leaf)), state)
    assert relative_rms(state, case.states[:, leaf]) < BOUNDS[dtype]
