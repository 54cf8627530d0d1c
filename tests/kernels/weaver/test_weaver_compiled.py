"""The compiled Weaver tree: what it covers, what it refuses, and a warning where it cannot be built."""

import logging
import os
import shutil

import pytest
import torch

from kernels.compile import load_library
from kernels.weaver.compiled import CompiledWeaverTree, supports, weaver_library

COMPILER = os.environ.get("CXX", "c++")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler here")
VOCAB, HIDDEN, RANK, MLP, DEPTHS, POOL = 24, 12, 16, 32, 4, 10


def v1_state(rank: int = RANK, mlp: int = MLP) -> dict[str, torch.Tensor]:
    shapes = {
        "output_norm": (HIDDEN,),
        "proposal_in": (rank, HIDDEN),
        "out_norm": (rank,),
        **{f"blocks.0.{name}_proj": (rank, rank) for name in "qkvo"},
        **{f"blocks.0.{name}": (rank,) for name in ("norm_attn", "norm_mlp")},
        "blocks.0.fc1": (mlp, rank),
        "blocks.0.fc2": (rank, mlp),
    }
    state = {f"{name}.weight": torch.randn(*shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items() if not name.endswith("_proj")}
    return state | {"pos_emb": torch.randn(DEPTHS, rank)}


def compiled() -> CompiledWeaverTree:
    tables = {"token_table": torch.randn(VOCAB, RANK), "residual_head": torch.randn(VOCAB, RANK)}
    return CompiledWeaverTree(v1_state(), **tables, heads=2, pool_size=POOL, children=3)


def inputs(**changes):
    values = {
        "anchor": 3,
        "target_hidden": torch.randn(HIDDEN),
        "draft_hidden": torch.randn(DEPTHS, HIDDEN),
        "draft_logits": torch.randn(DEPTHS, VOCAB),
        "budget": 5,
        "width": 2,
    }
    return values | changes


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_one_warning(tmp_path, monkeypatch, caplog, compiler):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    load_library.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert weaver_library() is None
            assert weaver_library() is None
            with pytest.raises(RuntimeError, match="not compiled"):
                compiled()
    finally:
        load_library.cache_clear()
    assert len(caplog.messages) == 1
    assert "\n" not in caplog.messages[0]
    assert "torch path" in caplog.messages[0]


def test_what_the_compiled_path_covers():
    state = v1_state()
    assert supports(state)
    assert not supports({**state, "blocks.1.norm_attn.weight": torch.ones(RANK)})
    assert not supports({key: value for key, value in state.items() if key != "pos_emb"})
    assert not supports({key: value for key, value in state.items() if "q_proj" not in key})
    assert not supports(v1_state(rank=24))
    assert not supports(v1_state(mlp=40))
    assert not supports({key: value.to("meta") for key, value in state.items()})


@needs_compiler
def test_padding_and_size():
    grown = compiled()
    tokens, parents, edges, size = grown.grow(**inputs(budget=0))
    assert (tokens.tolist(), parents.tolist(), edges.tolist(), size) == ([3], [-1], [0.0], 1)
    one_level = inputs(draft_hidden=torch.randn(1, HIDDEN), draft_logits=torch.randn(1, VOCAB), budget=6)
    tokens, parents, edges, size = grown.grow(**one_level)
    assert size == 4
    assert parents.tolist() == [-1, 0, 0, 0, 0, 0, 0]
    assert tokens[size:].tolist() == [0, 0, 0]
    assert edges[size:].tolist() == [-torch.inf] * 3


@needs_compiler
def test_candidates_at_minus_infinity_are_not_drafted():
    logits = torch.full((DEPTHS, VOCAB), -torch.inf)
    logits[0, 7], logits[1, [2, 9]] = 1.0, 0.5
    tokens, parents, edges, size = compiled().grow(**inputs(draft_logits=logits, budget=9))
    assert size == 4
    assert parents[:size].tolist() == [-1, 0, 1, 1]
    assert tokens[1].item() == 7
    assert set(tokens[2:size].tolist()) == {2, 9}
    torch.testing.assert_close(edges[2:size].exp().sum(), torch.tensor(1.0))


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        {"anchor": VOCAB},
        {"anchor": -1},
        {"target_hidden": torch.zeros(HIDDEN + 1)},
        {"target_hidden": torch.zeros(HIDDEN, dtype=torch.float64)},
        {"draft_hidden": torch.zeros(DEPTHS + 1, HIDDEN)},
        {"draft_logits": torch.zeros(DEPTHS, VOCAB - 1)},
        {"draft_logits": torch.zeros(VOCAB, DEPTHS).T},
    ],
    ids=lambda change: "-".join(change),
)
def test_nothing_of_a_wrong_size_reaches_the_library(change):
    with pytest.raises(ValueError, match=r"expected|anchor"):
        compiled().grow(**inputs(**change))
