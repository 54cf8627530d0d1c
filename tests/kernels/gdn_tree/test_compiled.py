"""What the compiled kernels add to the tests that all implementations share: widths, strides, threads, refusals."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import normalize, softplus

from kernels.compile import load_library
from kernels.gdn_tree import TORCH, TreeStructure, fastest, implementations, naive_tree_gated_delta_rule
from kernels.gdn_tree.compiled import gdn_library, supports

CPU = torch.device("cpu")
COMPILED = implementations(CPU)["compiled"]
needs_compiler = pytest.mark.skipif(COMPILED.unavailable is not None, reason=str(COMPILED.unavailable))
METHODS = pytest.mark.parametrize("method", COMPILED.verify)


def inputs_of(parents, *, heads=2, group=3, key_dim=32, value_dim=32, batch=1):
    """Fresh inputs as views into wider buffers, as a fused projection leaves them."""
    nodes = len(parents)
    mixed = torch.randn(batch, nodes, 2 * heads * key_dim + heads * group * value_dim + 5)
    q, k, v, _ = mixed.split([heads * key_dim, heads * key_dim, heads * group * value_dim, 5], -1)
    q, k = (normalize(x.view(batch, nodes, heads, key_dim), dim=-1) for x in (q, k))
    gates = torch.randn(batch, nodes, 2 * heads * group)
    return {
        "q": torch.cat([q, torch.full_like(q, torch.nan)], 3)[..., :key_dim],
        "k": torch.stack([k, torch.full_like(k, torch.nan)], 2)[:, :, 0],
        "v": v.view(batch, nodes, heads * group, value_dim),
        "g": -softplus(gates[..., ::2] - 1),
        "beta": gates[..., 1::2].sigmoid(),
        "initial_state": torch.randn(batch, heads * group, key_dim, value_dim),
        "structure": TreeStructure.from_parents(torch.tensor(parents)),
    }


def oracle(inputs):
    wide = {name: x.double() for name, x in inputs.items() if name != "structure"}
    return naive_tree_gated_delta_rule(**wide, parents=inputs["structure"].parents)


@needs_compiler
@pytest.mark.parametrize("value_dim", [16, 32, 48, 64, 112, 128])
@pytest.mark.parametrize("key_dim", [16, 32, 48, 64, 128])
@METHODS
def test_any_width_in_lanes(method, key_dim, value_dim, make_parents, relative_rms):
    inputs = inputs_of(make_parents("mixed", 40), key_dim=key_dim, value_dim=value_dim)
    assert not inputs["q"].is_contiguous()
    result = COMPILED.verify[method](**inputs)
    outputs, states = oracle(inputs)
    assert relative_rms(result.outputs, outputs) < 2e-6
    if result.states is not None:
        assert relative_rms(result.states, states) < 2e-6
    state = inputs["initial_state"].clone()
    path = torch.tensor(inputs["structure"].path_to(39))
    COMPILED.commit["replay"](**{x: inputs[x] for x in ("k", "v", "g", "beta")}, path=path, state=state)
    assert relative_rms(state, states[:, 39]) < 2e-6
    state = inputs["initial_state"].clone()
    folded = {"k": inputs["k"], "g": inputs["g"], "pseudo_values": result.pseudo_values}
    COMPILED.commit["fold"](**folded, path=path, state=state)
    assert relative_rms(state, states[:, 39]) < 2e-6


@needs_compiler
@pytest.mark.parametrize("nodes", [63, 64, 65, 129, 200])
def test_states_in_between_carry_long_paths(nodes, relative_rms):
    """At a key width of 32 a segment holds 16 nodes: here chains of many segments fork at and around their ends."""
    parents = [-1, *(node - 1 if node % 50 else 16 for node in range(1, nodes))]
    inputs = inputs_of(parents)
    assert int(inputs["structure"].depths.max()) > 3 * 16
    result = COMPILED.verify["fused"](**inputs)
    expected = TORCH.verify["fused"](**inputs)
    assert relative_rms(result.outputs, oracle(inputs)[0]) < 2e-6
    assert relative_rms(result.pseudo_values, expected.pseudo_values.double()) < 2e-6


@needs_compiler
@METHODS
def test_threads_share_nothing(method, make_parents):
    """Enough work for two threads, of three sequences: the same to the bit as on one thread."""
    inputs = inputs_of(make_parents("random", 129), heads=4, key_dim=64, value_dim=64, batch=3)
    alone = COMPILED.verify[method](**inputs)
    torch.set_num_threads(2)
    try:
        together = COMPILED.verify[method](**inputs)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(alone.outputs, together.outputs)
    assert torch.equal(alone.pseudo_values, together.pseudo_values)


@needs_compiler
@METHODS
def test_everything_is_written(method, make_parents, monkeypatch, relative_rms):
    """Memory that the call allocates holds NaN beforehand."""
    inputs = inputs_of(make_parents("wide", 33))
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *size: empty(self, *size).fill_(torch.nan))
    result = COMPILED.verify[method](**inputs)
    outputs, states = oracle(inputs)
    assert relative_rms(result.outputs, outputs) < 2e-6
    assert result.pseudo_values.isfinite().all()
    assert result.states is None or relative_rms(result.states, states) < 2e-6


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        {"q": torch.zeros(1, 5, 2, 16)},
        {"v": torch.zeros(1, 6, 6, 32)},
        {"g": torch.zeros(1, 5, 5)},
        {"beta": torch.zeros(1, 5, 6, dtype=torch.float64)},
        {"initial_state": torch.zeros(1, 6, 32, 16)},
        {"structure": TreeStructure.from_parents(torch.tensor([-1, 0, 1, 2]))},
    ],
    ids=lambda change: "-".join(change),
)
def test_nothing_of_a_wrong_size_reaches_the_library(change):
    with pytest.raises(ValueError, match=r"expected|belong"):
        COMPILED.verify["fused"](**inputs_of([-1, 0, 0, 1, 1]) | change)


@needs_compiler
@pytest.mark.parametrize("parents", [[-1, 0, 2], [-1, -1, 0], [0, 0, 1], [-1, 0, 7]])
@METHODS
def test_parents_that_are_no_tree_are_refused(method, parents):
    inputs = inputs_of([-1, 0, 1])
    structure = inputs["structure"]
    inputs["structure"] = TreeStructure(torch.tensor(parents), structure.depths, structure.ancestors)
    with pytest.raises(ValueError, match="parents"):
        COMPILED.verify[method](**inputs)


@needs_compiler
@pytest.mark.parametrize("path", [[0, 3], [0, -1]])
def test_a_path_outside_the_tree_is_refused_before_anything_is_written(path):
    inputs = inputs_of([-1, 0, 1])
    state = inputs["initial_state"].clone()
    with pytest.raises(ValueError, match="path"):
        COMPILED.commit["replay"](
            **{x: inputs[x] for x in ("k", "v", "g", "beta")}, path=torch.tensor(path), state=state
        )
    assert torch.equal(state, inputs["initial_state"])


@needs_compiler
def test_what_the_fastest_is():
    heads = {"key_dim": 32, "value_dim": 32}
    kernels = fastest(CPU, dtype=torch.float32, **heads)
    assert kernels.name == "compiled"
    assert kernels.verify["fused"] is COMPILED.verify["fused"]
    assert kernels.verify["level_recurrent"] is TORCH.verify["level_recurrent"]
    assert fastest(CPU, dtype=torch.bfloat16, **heads).tree_causal_conv is TORCH.tree_causal_conv
    assert fastest(CPU, dtype=torch.float32, key_dim=24, value_dim=32) is TORCH
    assert not supports(torch.device("meta"), 32, 32)


def test_without_a_compiler_torch_and_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    load_library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert fastest(CPU, dtype=torch.float32, key_dim=32, value_dim=32) is TORCH
            assert fastest(CPU, dtype=torch.float32, key_dim=32, value_dim=32) is TORCH
        assert gdn_library() is None
        assert implementations(CPU)["compiled"].unavailable == "no C++ compiler was found"
        with pytest.raises(RuntimeError, match="not compiled"):
            COMPILED.verify["fused"](**inputs_of([-1, 0]))
    finally:
        load_library.cache_clear()
    assert len(caplog.messages) == 1
    assert "torch path" in caplog.messages[0]
