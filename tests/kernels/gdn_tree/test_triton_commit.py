"""The Triton commits, interpreted: the definition's state at the accepted leaf, and the window of commit_window."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import commit_window, fused_tree_gated_delta_rule, naive_tree_gated_delta_rule
from kernels.gdn_tree.structure import chain_structure
from kernels.gdn_tree.triton_commit import fold, replay

COMMIT = {"replay": replay, "fold": fold}
READS = {"replay": ("k", "v", "g", "beta"), "fold": ("k", "pseudo_values", "g")}
WAYS = pytest.mark.parametrize("name", COMMIT)
BOUND = 2e-6
PATHS = [[0], [0, 2], [0, 1, 4], [0, 3, 5, 6], [0, 1, 3, 4, 7, 8], list(range(12)), []]


def draw(rows, *, nodes=12, heads=1, value_heads=2, key_dim=16, value_dim=16, channels=10):
    """Rows of any tree's nodes: a commit sees only the path."""
    return {
        "k": normalize(torch.randn(rows, nodes, heads, key_dim), dim=-1),
        "v": torch.randn(rows, nodes, value_heads, value_dim),
        "g": -softplus(torch.randn(rows, nodes, value_heads) - 1),
        "beta": torch.randn(rows, nodes, value_heads).sigmoid(),
        "inputs": torch.randn(rows, nodes, channels),
        "state": torch.randn(rows, value_heads, key_dim, value_dim),
        "window": torch.randn(rows, channels, 3),
        "pseudo_values": torch.full([rows, nodes, value_heads, value_dim], float("nan")),
    }


def solve(given, paths):
    """fp64 states and windows after paths[r % S] in each row r; writes the pseudo-values of the path's nodes."""
    state, window = given["state"].double(), given["window"].clone()
    for row in range(len(state)):
        path = torch.tensor(paths[row % len(paths)], dtype=torch.int64)
        if not len(path):
            continue
        exact = {name: given[name][row : row + 1, path].double() for name in ("k", "v", "g", "beta")}
        exact |= {"q": exact["k"], "initial_state": state[row : row + 1]}
        structure = chain_structure(len(path))
        solved = fused_tree_gated_delta_rule(**exact, structure=structure)
        given["pseudo_values"][row, path] = solved.pseudo_values[0].to(given["pseudo_values"].dtype)
        state[row] = naive_tree_gated_delta_rule(**exact, parents=structure.parents)[1][0, -1]
        commit_window(inputs=given["inputs"][row : row + 1], path=path, window=window[row : row + 1])
    return state, window


def poison(given, paths):
    """NaN in every row off the path."""
    for row in range(len(given["state"])):
        off_path = [node for node in range(given["k"].shape[1]) if node not in paths[row % len(paths)]]
        for name in ("k", "v", "g", "beta", "inputs", "pseudo_values"):
            given[name][row, off_path] = float("nan")


def padded(paths, length=16):
    return torch.tensor([[*path, *[-1] * (length - len(path))] for path in paths])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{len(path)}_nodes")
@WAYS
def test_reaches_the_leaf_state(name, path, relative_rms):
    given = draw(1)
    state, window = solve(given, [path])
    poison(given, [path])
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state", "inputs", "window")}, path=padded([path])[0])
    assert relative_rms(given["state"], state) < BOUND
    assert torch.equal(given["window"], window)


@WAYS
def test_layers_times_sequences(name, relative_rms):
    """Two layers of three sequences, each sequence with its own path; grouped heads, several tiles, odd dims."""
    given = draw(6, heads=2, value_heads=4, key_dim=24, value_dim=20, channels=300)
    paths = [PATHS[3], PATHS[0], PATHS[4]]
    state, window = solve(given, paths)
    poison(given, paths)
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state", "inputs", "window")}, path=padded(paths, 6).int())
    assert relative_rms(given["state"], state) < BOUND
    assert torch.equal(given["window"], window)


@WAYS
def test_written_where_it_lies(name, relative_rms):
    """State and window are strided slices of larger buffers, k and v of one projection; neighbours stay untouched."""
    given = draw(2)
    state, window = solve(given, [PATHS[4]])
    states, windows = torch.zeros(4, 2, 3, 16, 16), torch.zeros(4, 12, 3)
    projection = torch.cat([given[x].flatten(2) for x in ("k", "v")], 2)
    key, value = projection.split([16, 32], 2)
    states[1:3, :, 1], windows[1:3, 1:11] = given["state"], given["window"]
    given |= {"k": key.unflatten(2, (1, 16)), "v": value.unflatten(2, (2, 16))}
    given |= {"state": states[1:3, :, 1], "window": windows[1:3, 1:11]}
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state", "inputs", "window")}, path=padded([PATHS[4]]))
    assert relative_rms(states[1:3, :, 1], state) < BOUND
    assert torch.equal(windows[1:3, 1:11], window)
    states[1:3, :, 1], windows[1:3, 1:11] = 0, 0
    assert not states.any()
    assert not windows.any()


@WAYS
def test_bf16(name, relative_rms):
    """What is read was rounded before; nothing is rounded after: the bound is that of fp32."""
    given = draw(1)
    given |= {x: given[x].bfloat16() for x in ("k", "v", "inputs", "window")}
    state, window = solve(given, [PATHS[4]])
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state", "inputs", "window")}, path=padded([PATHS[4]]))
    assert relative_rms(given["state"], state) < BOUND
    assert torch.equal(given["window"], window)


@WAYS
def test_full_size_head_under_extreme_decay(name, relative_rms):
    given = draw(1, value_heads=1, key_dim=128, value_dim=128)
    given["g"][:, 3::4] = -80.0
    state, _ = solve(given, [PATHS[5]])
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state")}, path=padded([PATHS[5]]))
    assert relative_rms(given["state"], state) < BOUND


@WAYS
def test_bound_notices_a_small_error(name, relative_rms):
    given = draw(1)
    state, _ = solve(given, [PATHS[4]])
    given["g"] = given["g"] * (1 + 1e-4)
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state")}, path=padded([PATHS[4]]))
    assert relative_rms(given["state"], state) > BOUND


@pytest.mark.parametrize(("name", "row"), [(name, row) for name in COMMIT for row in READS[name]])
def test_rows_on_the_path_are_read(name, row):
    given = draw(1)
    solve(given, [PATHS[4]])
    given[row][:, PATHS[4][-1]] = float("nan")
    COMMIT[name](**{x: given[x] for x in (*READS[name], "state")}, path=padded([PATHS[4]]))
    assert given["state"].isnan().any()


@WAYS
def test_inputs_without_window_are_refused(name):
    given = draw(1)
    with pytest.raises(ValueError, match="together"):
        COMMIT[name](**{x: given[x] for x in (*READS[name], "state", "inputs")}, path=padded([PATHS[0]]))


@WAYS
def test_last_dimension_must_be_contiguous(name):
    given = draw(1)
    given["state"] = given["state"].transpose(-1, -2)
    with pytest.raises(ValueError, match=r"^state: .*contiguous"):
        COMMIT[name](**{x: given[x] for x in (*READS[name], "state")}, path=padded([PATHS[0]]))
