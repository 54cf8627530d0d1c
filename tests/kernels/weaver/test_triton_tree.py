"""Whole trees on the device against the torch path; one fixed sequence of launches that never waits for the device."""

import math
import sys
from dataclasses import replace

import pytest
import torch

from kernels.weaver import triton_tree
from kernels.weaver.triton_tree import TritonWeaverTree
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.models.layers import rotary_rows
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

VOCAB, HIDDEN, DEPTHS = 40, 24, 4
CONFIG = WeaverConfig(HIDDEN, 20, 48, 1, 2, 40, K=DEPTHS, candidate_pool_size=12)  # heads of 24: no power of two
VERSIONS = {"v1": {}, "v2": {"activation": "swiglu"}}


def make_weaver(seed: int, **changes) -> tuple[Weaver, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    weaver = Weaver(replace(CONFIG, **changes))
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return weaver.requires_grad_(False), (torch.randn(VOCAB, CONFIG.d_embed), torch.randn(VOCAB, HIDDEN))


def make_inputs(seed: int, depths: int = DEPTHS) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed + 100)
    shapes = {"target_hidden": (HIDDEN,), "draft_hidden": (depths, HIDDEN), "draft_logits": (depths, VOCAB)}
    return {name: torch.randn(shape) * (2 if name == "draft_logits" else 1) for name, shape in shapes.items()}


def on_device(runtime: WeaverRuntime, device: torch.device, dtype: torch.dtype = torch.float32) -> TritonWeaverTree:
    """The Triton twin of a runtime, from the very tables it uses."""
    config = runtime.weaver.config
    rotary = rotary_rows(torch.arange(config.K + 1, device=device), config.head_dim, config.rotary_base)
    return TritonWeaverTree(
        {name: value.to(device, dtype) for name, value in runtime.weaver.state_dict().items()},
        token_table=runtime.token_table.to(device, dtype),
        residual_head=runtime.residual_head.to(device, dtype),
        heads=config.num_heads,
        pool_size=runtime.pool_size,
        children=runtime.children,
        rotary=rotary if config.version == 2 else None,
    )


def assert_same_tree(grown: tuple, expected) -> None:
    tokens, parents, edges, size = grown
    assert size.item() == expected.size
    assert tokens.tolist() == expected.tokens.tolist()
    assert parents.tolist() == expected.parents.tolist()
    torch.testing.assert_close(edges.cpu(), expected.edge_logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("budget", "width"), [(0, 1), (1, 1), (7, 9), (9, 1), (16, 4), (23, 10)])
@pytest.mark.parametrize("seed", range(2))
def test_trees_are_those_of_the_torch_path(device, poisoned, seed, budget, width, version):
    weaver, tables = make_weaver(seed, **VERSIONS[version])
    runtime, inputs = WeaverRuntime(weaver, *tables, compiled=False), make_inputs(seed)
    expected = runtime.build(7, *inputs.values(), budget, width)
    assert_same_tree(on_device(runtime, device).grow(anchor=7, **inputs, budget=budget, width=width), expected)


def test_small_pools_run_dry_and_are_padded(device, poisoned):
    weaver, tables = make_weaver(2)
    runtime, inputs = WeaverRuntime(weaver, *tables, pool_size=3, compiled=False), make_inputs(2, depths=2)
    tree = on_device(runtime, device)
    for budget, width in ((20, 4), (13, 5)):
        expected = runtime.build(7, *inputs.values(), budget, width)
        grown = tree.grow(anchor=7, **inputs, budget=budget, width=width)
        assert_same_tree(grown, expected)
        assert expected.size == 1 + 3 + 9
        assert grown[1][expected.size :].eq(0).all()


def test_buffers_of_a_shape_serve_every_round(device):
    """A tree leaves nothing behind: not in the frontier, not in paths, keys or values."""
    weaver, tables = make_weaver(3)
    runtime = WeaverRuntime(weaver, *tables, compiled=False)
    tree = on_device(runtime, device)
    results = []
    for anchor, seed in ((7, 0), (torch.tensor(11), 1), (torch.tensor([7]), 0)):
        inputs = make_inputs(seed)
        if seed:
            inputs["draft_logits"][1, 2:] = -math.inf
        grown = tree.grow(anchor=anchor, **inputs, budget=12, width=3)
        assert_same_tree(grown, runtime.build(int(anchor), *inputs.values(), 12, 3))
        results.append([part.data_ptr() for part in grown])
    assert results[0] == results[1] == results[2]


def test_tied_candidates_enter_by_id(device):
    weaver, tables = make_weaver(0)
    weaver.lm_head_query_in.weight.zero_()
    inputs = make_inputs(0, depths=1)
    inputs["draft_logits"][:] = torch.arange(VOCAB) % 3
    inputs["draft_logits"][0, 3] = -0.0
    runtime = WeaverRuntime(weaver, *tables, pool_size=30, children=30, compiled=False)
    tokens, *_ = on_device(runtime, device).grow(anchor=7, **inputs, budget=30, width=4)
    marginals = inputs["draft_logits"][0].tolist()
    assert tokens.tolist()[1:] == sorted(range(VOCAB), key=lambda token: (-marginals[token], token))[:30]


def test_one_expansion_a_batch_and_none_of_the_last(device, monkeypatch):
    weaver, tables = make_weaver(0)
    rows, attend = [], triton_tree.node_attention
    monkeypatch.setattr(
        triton_tree, "node_attention", lambda **kwargs: rows.append(len(kwargs["batch"])) or attend(**kwargs)
    )
    tree = on_device(WeaverRuntime(weaver, *tables, compiled=False), device)
    tree.grow(anchor=7, **make_inputs(0), budget=10, width=4)
    assert rows == [1, 4, 4]


WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def test_nothing_waits_for_the_device(device, monkeypatch):
    weaver, tables = make_weaver(1)
    tree = on_device(WeaverRuntime(weaver, *tables, compiled=False), device)
    inputs = {name: value.to(device) for name, value in make_inputs(1).items()}

    def refuse(name):
        method = getattr(torch.Tensor, name)

        def guarded(self, *args, **kwargs):
            # Triton's interpreter works on the host by design; its own accesses are not ours.
            if "/triton/" not in sys._getframe(1).f_code.co_filename:
                raise AssertionError(f"{name} waits for the device")
            return method(self, *args, **kwargs)

        return guarded

    for name in WAITS:
        monkeypatch.setattr(torch.Tensor, name, refuse(name))
    with pytest.raises(AssertionError, match="waits"):
        inputs["draft_logits"].max().item()
    anchor = torch.tensor([7], device=device)
    tokens, *_ = tree.grow(anchor=anchor, **inputs, budget=9, width=3)
    monkeypatch.undo()
    assert tokens[0].item() == 7


def test_bf16_weights_score_as_their_fp32_values_do(device, poisoned):
    """The children of the anchor, whose inputs do not depend on what else was chosen."""
    weaver, tables = make_weaver(4)
    with torch.no_grad():
        for parameter in weaver.parameters():
            parameter.copy_(parameter.mul(0.5).bfloat16())
    runtime, inputs = WeaverRuntime(weaver, *tables, compiled=False), make_inputs(4)
    tables_in_fp32 = [table.bfloat16().float() for table in (runtime.token_table, runtime.residual_head)]
    runtime.token_table, runtime.residual_head = tables_in_fp32
    expected = runtime.build(7, *inputs.values(), 5, 5)
    tokens, parents, edges, size = on_device(runtime, device, torch.bfloat16).grow(
        anchor=7, **inputs, budget=5, width=5
    )
    assert size.item() == 6
    assert parents.tolist() == expected.parents.tolist()
    law = dict(zip(expected.tokens.tolist(), expected.edge_logprobs.tolist(), strict=True))
    found = {token: edge for token, edge in zip(tokens.tolist(), edges.tolist(), strict=True) if token in law}
    assert len(found) >= 5
    assert all(abs(edge - law[token]) < 0.1 for token, edge in found.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_replayed_graph_gives_the_same_trees(device):
    weaver, tables = make_weaver(0)
    runtime = WeaverRuntime(weaver, *tables, compiled=False)
    tree = on_device(runtime, device)
    tree.capture(depths=DEPTHS, budget=16, width=4)
    for seed in range(3):
        inputs = make_inputs(seed)
        grown = tree.grow(anchor=seed, **inputs, budget=16, width=4)
        assert_same_tree(grown, runtime.build(seed, *inputs.values(), 16, 4))


def test_a_graph_needs_a_gpu():
    weaver, tables = make_weaver(0)
    tree = on_device(WeaverRuntime(weaver, *tables, compiled=False), torch.device("cpu"))
    with pytest.raises(RuntimeError, match="CUDA"):
        tree.capture(depths=DEPTHS, budget=4, width=2)


@pytest.mark.parametrize(
    "change",
    [
        {"anchor": VOCAB},
        {"anchor": -1},
        {"budget": -1},
        {"width": 0},
        {"target_hidden": torch.zeros(HIDDEN + 1)},
        {"draft_hidden": torch.zeros(DEPTHS + 1, HIDDEN)},
        {"draft_logits": torch.zeros(DEPTHS, VOCAB - 1)},
    ],
    ids=lambda change: "-".join(change),
)
def test_wrong_arguments_are_refused(change):
    weaver, tables = make_weaver(0)
    tree = on_device(WeaverRuntime(weaver, *tables, compiled=False), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"anchor|budget|expected"):
        tree.grow(**{"anchor": 7, **make_inputs(0), "budget": 4, "width": 2} | change)
