"""Weaver: published shapes, and incremental node steps against one causal forward over [prefix | path]."""

from dataclasses import replace

import pytest
import torch

from tfm_bench.models.weaver import NodeCache, Weaver
from tfm_bench.models.weaver_config import WeaverConfig

PUBLISHED = WeaverConfig(5120, 5120, 2048, 1, 16, 2048, 15, 512)
SMALL = WeaverConfig(
    d_model=24, d_embed=20, d_rank=16, num_layers=1, num_heads=2, mlp_dim=12, K=6, candidate_pool_size=8
)
DEPTHS = 6


def random_weaver(version: int = 1, layers: int = 1, seed: int = 0) -> Weaver:
    torch.manual_seed(seed)
    weaver = Weaver(replace(SMALL, num_layers=layers, activation="swiglu" if version == 2 else None))
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return weaver.requires_grad_(False)


def random_tree(nodes: int, seed: int) -> list[int]:
    """Parents of a random tree no deeper than DEPTHS - 1, the deepest node that Weaver expands."""
    generator = torch.Generator().manual_seed(seed)
    parents, depths = [-1], [0]
    while len(parents) < nodes:
        parent = int(torch.randint(len(parents), (1,), generator=generator))
        if depths[parent] < DEPTHS - 1:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return parents


def path_to(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


def incremental_queries(weaver, target_hidden, draft_hidden, embeddings, parents, batch):
    """Query vector of every node, `batch` nodes of increasing index per step (a parent may share its child's batch
    only if it comes earlier, so batches are cut there)."""
    keys, values = (x[:, 0] for x in weaver.prefix(target_hidden[None], draft_hidden[None]))
    rows, nodes = keys.shape[1], len(parents)
    cache = NodeCache(
        *(torch.cat([x, torch.full_like(x[:, :1], torch.nan).expand(-1, nodes, -1, -1)], 1) for x in (keys, values)),
        rows,
    )
    features, queries = weaver.token_features(embeddings), []
    while (start := len(queries)) < nodes:
        end = start + 1
        while end < min(nodes, start + batch) and parents[end] < start:
            end += 1
        mask = torch.zeros(end - start, rows + end, dtype=torch.bool)
        mask[:, :rows] = True
        paths = [path_to(parents, node) for node in range(start, end)]
        for row, path in enumerate(paths):
            mask[row, [rows + node for node in path]] = True
        depths = torch.tensor([len(path) - 1 for path in paths])
        queries.extend(weaver.node_step(features[start:end], depths, cache, mask))
    assert cache.filled == rows + nodes
    return torch.stack(queries)


def random_inputs(nodes: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*shape, generator=generator)
        for shape in ((SMALL.d_model,), (DEPTHS, SMALL.d_model), (nodes, SMALL.d_embed))
    ]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch", [1, 4])
def test_node_steps_equal_causal_forward(version, layers, batch):
    weaver, parents = random_weaver(version, layers), random_tree(24, seed=layers)
    target_hidden, draft_hidden, embeddings = random_inputs(len(parents), seed=7)
    actual = incremental_queries(weaver, target_hidden, draft_hidden, embeddings, parents, batch)
    for node in range(len(parents)):
        path = path_to(parents, node)
        expected = weaver.path_queries(target_hidden[None], draft_hidden[None], embeddings[None, path])[0, -1]
        torch.testing.assert_close(actual[node], expected, rtol=1e-4, atol=2e-5)


def naive_norm(x, state, name):
    return x / (x.square().mean() + 1e-6).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def naive_rotate(x, position, base=10000.0):
    half = x.shape[-1] // 2
    angles = torch.tensor([position * base ** (-i / half) for i in range(half)], dtype=torch.float64)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def naive_query(weaver, target_hidden, draft_hidden, path_embeddings):
    """Query vector of the last node of a path: one layer, row by row, in float64, from the formulas alone."""
    state = {key: value.double() for key, value in weaver.state_dict().items()}
    version, heads = weaver.config.version, (SMALL.num_heads, -1)
    linear = lambda x, name: state[f"{name}.weight"] @ x + state.get(f"{name}.bias", 0.0)  # noqa: E731
    rows = [linear(naive_norm(h, state, "output_norm"), "proposal_in") for h in (target_hidden, *draft_hidden)]
    nodes = [linear(naive_norm(e, state, "embed_norm"), "token_in") for e in path_embeddings]
    if version == 1:
        rows = rows[:1] + [x + state["pos_emb"][i] for i, x in enumerate(rows[1:])]
        nodes = [x + state["pos_emb"][i] for i, x in enumerate(nodes)]
    projected = []
    for x, position in zip(rows + nodes, [*range(len(rows)), *range(1, len(nodes) + 1)], strict=True):
        n = naive_norm(x, state, "blocks.0.norm_attn")
        if version == 1:
            projected.append([linear(n, f"blocks.0.{name}_proj").view(heads) for name in "qkv"])
        else:
            q, k, v = linear(n, "blocks.0.qkv_proj").view(3, *heads)
            projected.append([naive_rotate(q, position), naive_rotate(k, position), v])
    x, query = nodes[-1], projected[-1][0]
    weights = torch.stack([(query * k).sum(-1) for _, k, _ in projected]) / query.shape[-1] ** 0.5
    weights = weights.exp() / weights.exp().sum(0)
    x = x + linear(
        sum(w[:, None] * v for w, (_, _, v) in zip(weights, projected, strict=True)).flatten(), "blocks.0.o_proj"
    )
    n = naive_norm(x, state, "blocks.0.norm_mlp")
    if version == 1:
        inner = linear(n, "blocks.0.fc1")
        x = x + linear(inner * (1 + torch.erf(inner / 2**0.5)) / 2, "blocks.0.fc2")
    else:
        gate, up = linear(n, "blocks.0.gate_up_proj").chunk(2)
        x = x + linear(gate / (1 + (-gate).exp()) * up, "blocks.0.down_proj")
    return naive_norm(x, state, "out_norm")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("length", [1, 2, DEPTHS])
def test_causal_forward_equals_the_formulas(version, length):
    weaver = random_weaver(version)
    target_hidden, draft_hidden, embeddings = random_inputs(length, seed=length)
    actual = weaver.path_queries(target_hidden[None], draft_hidden[None], embeddings[None])[0, -1]
    expected = naive_query(weaver, *(x.double() for x in (target_hidden, draft_hidden, embeddings)))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_node_sees_prefix_and_ancestors_only(version, layers):
    weaver, parents = random_weaver(version, layers), [-1, 0, 0, 1, 2]
    target_hidden, draft_hidden, embeddings = random_inputs(len(parents), seed=3)

    def queries(target=target_hidden, tokens=embeddings):
        return incremental_queries(weaver, target, draft_hidden, tokens, parents, batch=2)

    before, other = queries(), embeddings.clone()
    other[1] += 1.0
    changed = (queries(tokens=other) - before).abs().amax(-1) > 1e-6
    assert changed.tolist() == [False, True, False, True, False]
    assert ((queries(target=target_hidden + 1.0 * torch.randn(SMALL.d_model)) - before).abs().amax(-1) > 1e-6).all()


def test_order_matters_through_positions():
    for version in (1, 2):
        weaver = random_weaver(version)
        target_hidden, draft_hidden, embeddings = random_inputs(3, seed=5)
        straight = weaver.path_queries(target_hidden[None], draft_hidden[None], embeddings[None])
        swapped = weaver.path_queries(target_hidden[None], draft_hidden[None], embeddings[None, [1, 0, 2]])
        assert (straight[0, -1] - swapped[0, -1]).abs().max() > 1e-4


def test_path_scores_are_head_rows_times_query():
    weaver = random_weaver()
    target_hidden, draft_hidden, embeddings = random_inputs(DEPTHS, seed=11)
    head, candidates = torch.randn(50, SMALL.d_model), torch.randint(0, 50, (1, DEPTHS, 8))
    arguments = (target_hidden[None], draft_hidden[None], embeddings[None])
    residuals = weaver.path_scores(*arguments, head, candidates)
    in_target_space = weaver.lm_head_query_in(weaver.path_queries(*arguments))
    for depth in range(DEPTHS):
        expected = head[candidates[0, depth]] @ in_target_space[0, depth]
        torch.testing.assert_close(residuals[0, depth], expected, rtol=1e-4, atol=1e-4)


def test_fresh_weaver_has_no_residual():
    weaver = Weaver(SMALL)
    arguments = [x[None] for x in random_inputs(DEPTHS, seed=1)]
    residuals = weaver.path_scores(*arguments, torch.randn(50, SMALL.d_model), torch.randint(0, 50, (1, DEPTHS, 8)))
    assert residuals.abs().max() == 0.0


def test_gradients_reach_every_parameter():
    weaver = random_weaver().requires_grad_(True)
    arguments = [x[None] for x in random_inputs(DEPTHS, seed=1)]
    weaver.path_scores(
        *arguments, torch.randn(50, SMALL.d_model), torch.randint(0, 50, (1, DEPTHS, 8))
    ).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in weaver.parameters())


def test_published_dimensions():
    with torch.device("meta"):
        weaver = Weaver(PUBLISHED)
        second = Weaver(replace(PUBLISHED, activation="swiglu"))
    assert sum(parameter.numel() for parameter in weaver.parameters()) == 56_694_784
    shapes = {key: tuple(value.shape) for key, value in weaver.state_dict().items()}
    norms = {
        "output_norm": 5120,
        "embed_norm": 5120,
        "blocks.0.norm_attn": 2048,
        "blocks.0.norm_mlp": 2048,
        "out_norm": 2048,
    }
    linears = {
        "token_in": (2048, 5120),
        "proposal_in": (2048, 5120),
        "blocks.0.fc1": (2048, 2048),
        "blocks.0.fc2": (2048, 2048),
    }
    expected = {f"{name}.{kind}": (dim,) for name, dim in norms.items() for kind in ("weight", "bias")}
    expected |= {f"{name}.weight": shape for name, shape in linears.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    expected |= {f"blocks.0.{name}_proj.weight": (2048, 2048) for name in "qkvo"}
    expected |= {"lm_head_query_in.weight": (5120, 2048), "pos_emb": (15, 2048)}
    assert shapes == expected
    v2 = {key: tuple(value.shape) for key, value in second.state_dict().items()}
    assert v2["blocks.0.qkv_proj.weight"] == (6144, 2048)
    assert v2["blocks.0.gate_up_proj.weight"] == (4096, 2048)
    assert v2["blocks.0.down_proj.weight"] == (2048, 2048)
    assert set(v2) ^ set(shapes) == {
        *(f"blocks.0.{name}_proj.weight" for name in "qkv"),
        *(f"blocks.0.{name}.{kind}" for name in ("fc1", "fc2") for kind in ("weight", "bias")),
        *(f"blocks.0.{name}_proj.{kind}" for name in ("gate_up", "down") for kind in ("weight", "bias")),
        "blocks.0.qkv_proj.weight",
        "pos_emb",
    }
