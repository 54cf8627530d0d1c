"""Weaver trees: all runtimes against teacher-forced scoring of whole paths, and against closed cases."""

import copy
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kernels.weaver.compiled import weaver_library
from tfm_bench.drafting import weaver_tree
from tfm_bench.drafting.best_first import Node, grow_tree
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

VOCAB, HIDDEN, DEPTHS = 60, 24, 5
CONFIG = WeaverConfig(HIDDEN, 20, 32, 1, 2, 48, K=DEPTHS, candidate_pool_size=16)


def path_of(tree, node: int) -> tuple[int, ...]:
    """Tokens below the anchor, down to `node`."""
    return tuple(int(tree.tokens[i]) for i in tree.structure.path_to(node)[1:])


def scores_of(tree) -> list[float]:
    return [sum(float(tree.edge_logprobs[i]) for i in tree.structure.path_to(node)) for node in range(tree.size)]


def assert_well_formed(tree, budget: int, available: int) -> None:
    parents, scores = tree.parents.tolist(), scores_of(tree)
    assert tree.width == budget + 1
    assert tree.size == min(budget, available) + 1
    assert all(0 <= parents[i] < i for i in range(1, tree.size))
    assert all(scores[i] <= scores[parents[i]] for i in range(1, tree.size))
    assert len({path_of(tree, i) for i in range(tree.size)}) == tree.size


@pytest.fixture(params=["compiled", "torch", "triton"])
def make_runtime(request, monkeypatch):
    """Builds a runtime whose implementation is the one asked for."""
    if request.param == "compiled" and weaver_library() is None:
        pytest.skip("no C++ compiler here")
    if request.param == "triton":
        return triton_maker(monkeypatch)

    def make(weaver, embedding, head, **options):
        runtime = WeaverRuntime(weaver, embedding, head, compiled=request.param == "compiled", **options)
        assert runtime.implementation == request.param
        return runtime

    return make


def triton_maker(monkeypatch):
    """Triton on a GPU, with the tensors of a round moved there; without one, on the CPU in Triton's interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("Triton needs a GPU or its interpreter")
        monkeypatch.setattr(weaver_tree, "runs_in_triton", lambda weaver: weaver.config.num_layers == 1)

    def make(weaver, embedding, head, **options):
        runtime = WeaverRuntime(copy.deepcopy(weaver).to(device), embedding.to(device), head.to(device), **options)
        assert runtime.implementation == "triton"
        build = runtime.build
        runtime.build = lambda *args: build(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in args))
        return runtime

    return make


def random_weaver(seed: int, **changes) -> Weaver:
    torch.manual_seed(seed)
    weaver = Weaver(replace(CONFIG, **changes))
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return weaver.requires_grad_(False)


def random_problem(seed: int, depths: int = DEPTHS):
    torch.manual_seed(seed + 1000)
    tables = torch.randn(VOCAB, CONFIG.d_embed), torch.randn(VOCAB, HIDDEN)
    return tables, (torch.randn(HIDDEN), torch.randn(depths, HIDDEN), torch.randn(depths, VOCAB) * 2)


class PathScorer:
    """Oracle: scores each node by one teacher-forced forward over its whole path; no cache, no tables, no batch."""

    def __init__(self, weaver, tables, hidden, anchor, pool_size, children=8) -> None:
        self.weaver, (self.embedding, self.head) = weaver, tables
        self.target_hidden, self.draft_hidden, self.draft_logits = hidden
        self.pool_size, self.children, self.paths = pool_size, children, {-1: ()}

    def __call__(self, nodes):
        tokens, logprobs = [], []
        for node in nodes:
            path = self.paths[node.slot] = (*self.paths[node.parent], node.token)
            logits = self.draft_logits[len(path) - 1]
            pool = logits.sort(descending=True, stable=True).indices[: self.pool_size]
            prefix = (self.target_hidden[None], self.draft_hidden[None], self.embedding[None, list(path)])
            candidates = pool.expand(1, len(path), -1)
            law = (logits[pool] + self.weaver.path_scores(*prefix, self.head, candidates)[0, -1]).log_softmax(-1)
            best = law.sort(descending=True, stable=True).indices[: self.children]
            tokens.append(pool[best].tolist())
            logprobs.append(law[best].tolist())
        return tokens, logprobs


def assert_same_tree(tree, expected) -> None:
    assert tree.size == expected.size
    assert tree.tokens.tolist() == expected.tokens.tolist()
    assert tree.parents.tolist() == expected.parents.tolist()
    size = tree.size
    torch.testing.assert_close(tree.edge_logprobs[:size], expected.edge_logprobs[:size], rtol=0, atol=1e-4)
    assert tree.edge_logprobs[size:].tolist() == [-math.inf] * (tree.width - size)


RUNTIMES = [(name, seed) for name, seeds in (("compiled", 8), ("torch", 8), ("triton", 1)) for seed in range(seeds)]


@pytest.mark.parametrize(("budget", "width"), [(0, 1), (1, 1), (16, 1), (30, 4), (40, 10)])
@pytest.mark.parametrize(("make_runtime", "seed"), RUNTIMES, indirect=["make_runtime"])
def test_runtime_equals_scoring_of_whole_paths(make_runtime, seed, budget, width):
    weaver, (tables, hidden) = random_weaver(seed), random_problem(seed)
    oracle = PathScorer(weaver, tables, hidden, 7, CONFIG.candidate_pool_size)
    expected = grow_tree(7, oracle, budget=budget, expansion_width=width, max_depth=DEPTHS)
    tree = make_runtime(weaver, *tables).build(7, *hidden, budget, width)
    assert_same_tree(tree, expected)
    assert_well_formed(tree, budget, expected.size - 1)


@pytest.mark.parametrize("seed", range(3))
def test_compiled_equals_torch_at_the_sizes_of_the_tiny_stack(seed):
    if weaver_library() is None:
        pytest.skip("no C++ compiler here")
    torch.manual_seed(seed)
    weaver = Weaver(WeaverConfig(256, 256, 128, 1, 4, 256, 15, 512)).requires_grad_(False)
    weaver.lm_head_query_in.weight.normal_(std=0.03)
    tables = torch.randn(4096, 256), torch.randn(4096, 256) * 0.3
    hidden = torch.randn(256), torch.randn(15, 256), torch.randn(15, 4096) * 3
    hidden[2][torch.arange(15), torch.randint(4096, (15,))] += 18  # confident marginals: deep trees
    compiled, plain = WeaverRuntime(weaver, *tables), WeaverRuntime(weaver, *tables, compiled=False)
    assert (compiled.implementation, plain.implementation) == ("compiled", "torch")
    tree = compiled.build(7, *hidden, 64, 4)
    assert_same_tree(tree, plain.build(7, *hidden, 64, 4))
    assert tree.depths.max() > 8


@pytest.mark.parametrize("changes", [{"num_layers": 2}, {"activation": "swiglu"}], ids=["two-layers", "v2"])
def test_other_weavers_run_in_torch(changes):
    weaver, (tables, hidden) = random_weaver(3, **changes), random_problem(3)
    runtime = WeaverRuntime(weaver, *tables)
    assert runtime.implementation == "torch"
    oracle = PathScorer(weaver, tables, hidden, 7, CONFIG.candidate_pool_size)
    expected = grow_tree(7, oracle, budget=20, expansion_width=3, max_depth=DEPTHS)
    assert_same_tree(runtime.build(7, *hidden, 20, 3), expected)


def test_v2_runs_in_triton_too(monkeypatch):
    make = triton_maker(monkeypatch)
    weaver, (tables, hidden) = random_weaver(3, activation="swiglu"), random_problem(3)
    oracle = PathScorer(weaver, tables, hidden, 7, CONFIG.candidate_pool_size)
    expected = grow_tree(7, oracle, budget=12, expansion_width=3, max_depth=DEPTHS)
    assert_same_tree(make(weaver, *tables).build(7, *hidden, 12, 3), expected)


@pytest.mark.parametrize(("layers", "on_cuda"), [(1, False), (2, True), (1, True)])
def test_triton_is_for_one_layer_on_a_gpu(layers, on_cuda):
    pytest.importorskip("triton")
    weight = SimpleNamespace(is_cuda=on_cuda)
    weaver = SimpleNamespace(lm_head_query_in=SimpleNamespace(weight=weight), config=SimpleNamespace(num_layers=layers))
    assert weaver_tree.runs_in_triton(weaver) is (on_cuda and layers == 1)


def test_without_a_library_torch_takes_over(monkeypatch):
    monkeypatch.setattr(weaver_tree, "weaver_library", lambda: None)
    runtime = WeaverRuntime(random_weaver(0), *random_problem(0)[0])
    assert runtime.implementation == "torch"


def test_one_child_and_width_one_is_the_greedy_chain(make_runtime):
    for seed in range(5):
        weaver, (tables, hidden) = random_weaver(seed), random_problem(seed)
        tree = make_runtime(weaver, *tables, children=1).build(7, *hidden, DEPTHS, 1)
        scorer = PathScorer(weaver, tables, hidden, 7, CONFIG.candidate_pool_size, children=1)
        chain = [7]
        for depth in range(DEPTHS):
            ((token,),), _ = scorer([Node(depth, chain[-1], depth - 1, depth)])
            chain.append(token)
        assert tree.tokens.tolist() == chain
        assert tree.parents.tolist() == list(range(-1, DEPTHS))


@pytest.mark.parametrize("pool_size", [4, 8])
def test_without_residual_the_truncated_marginals_are_ranked(make_runtime, pool_size):
    depths, budget = 3, 40
    weaver, (tables, hidden) = random_weaver(0), random_problem(0, depths)
    weaver.lm_head_query_in.weight.zero_()
    tree = make_runtime(weaver, *tables, pool_size=pool_size).build(7, *hidden, budget, 1)
    scores, level = {}, {(): 0.0}
    for logits in hidden[2].double():
        pool = logits.topk(pool_size)
        law = list(zip(pool.indices.tolist(), pool.values.log_softmax(0).tolist(), strict=True))
        level = {(*path, t): score + p for path, score in level.items() for t, p in law}
        scores |= level
    best = sorted(scores, key=lambda path: -scores[path])[:budget]
    assert [path_of(tree, node) for node in range(1, tree.size)] == best
    torch.testing.assert_close(scores_of(tree)[1:], [scores[path] for path in best], rtol=0, atol=1e-4)


def test_the_residual_matters(make_runtime):
    weaver, (tables, hidden) = random_weaver(0), random_problem(0)
    with_residual = make_runtime(weaver, *tables).build(7, *hidden, 16, 1)
    weaver.lm_head_query_in.weight.zero_()
    without = make_runtime(weaver, *tables).build(7, *hidden, 16, 1)
    assert with_residual.tokens.tolist() != without.tokens.tolist()


def test_tied_candidates_enter_pool_and_tree_by_id(make_runtime):
    """Logits of three values at one depth: the pool's last places and the children's order are all ties."""
    weaver, (tables, hidden) = random_weaver(0), random_problem(0, 1)
    weaver.lm_head_query_in.weight.zero_()
    logits = torch.tensor([[float(i % 3) for i in range(VOCAB)]])
    logits[0, 5] = -0.0
    runtime = make_runtime(weaver, *tables, pool_size=45, children=45)
    tree = runtime.build(7, *hidden[:2], logits, 45, 1)
    expected = sorted(range(VOCAB), key=lambda i: (-logits[0, i].item(), i))[:45]
    assert tree.tokens.tolist()[1:] == expected


def test_trees_smaller_than_the_budget_are_padded(make_runtime):
    weaver, (tables, hidden) = random_weaver(1), random_problem(1, 2)
    tree = make_runtime(weaver, *tables, pool_size=3).build(7, *hidden, 30, 1)
    assert (tree.size, tree.width) == (1 + 3 + 9, 31)
    assert tree.structure.parents.tolist()[13:] == [0] * 18


def test_depth_is_limited_by_the_weavers_positions(make_runtime):
    weaver, (tables, hidden) = random_weaver(1), random_problem(1, DEPTHS + 3)
    tree = make_runtime(weaver, *tables, children=1).build(7, *hidden, 20, 1)
    assert tree.size == DEPTHS + 1


def test_low_precision_inputs_are_accepted(make_runtime):
    weaver, (tables, hidden) = random_weaver(2), random_problem(2)
    rounded = [x.bfloat16() for x in hidden]
    runtime = make_runtime(weaver, *tables)
    assert_same_tree(runtime.build(7, *rounded, 16, 2), runtime.build(7, *(x.float() for x in rounded), 16, 2))


def test_wrong_numbers_are_refused(make_runtime):
    weaver, (tables, hidden) = random_weaver(0), random_problem(0)
    runtime = make_runtime(weaver, *tables)
    for budget, width in ((-1, 1), (4, 0)):
        with pytest.raises(ValueError, match="budget"):
            runtime.build(7, *hidden, budget, width)
    with pytest.raises(ValueError, match="embeddings"):
        make_runtime(weaver, tables[0][:-1], tables[1])


@pytest.mark.parametrize("row", [0, DEPTHS - 1])
def test_nan_among_the_draft_logits_is_an_error_and_not_a_short_tree(make_runtime, row):
    tables, (target_hidden, draft_hidden, draft_logits) = random_problem(0)
    draft_logits[row, 3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        make_runtime(random_weaver(0), *tables).build(7, target_hidden, draft_hidden, draft_logits, 8, 1)
