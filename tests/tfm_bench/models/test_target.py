"""The target against transformers' own forward: chains, trees, commits; hybrid and dense; all in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from tests.tfm_bench.models.tiny_targets import (
    KINDS,
    VOCAB,
    chain_tree,
    close,
    expected_taps,
    library_forward,
    library_model,
    make_target,
    random_tokens,
    random_tree,
)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 63, 64, 65, 150])
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_matches_library(kind, length):
    target, tokens = make_target(kind), random_tokens(length)
    output = target.prefill(target.new_state(200, 8), tokens)
    logits, streams = library_forward(kind, tokens.tolist())
    close(output.logits[0], logits[-1])
    close(output.taps, expected_taps(kind, streams))
    close(target.lm_head(output.hidden), output.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_chain_matches_library_with_cache(kind):
    target, tokens = make_target(kind), random_tokens(40)
    model = library_model(kind)
    cached = DynamicCache(config=model.config)
    model(tokens[None, :30], cache=cached)
    expected = model(tokens[None, 30:], cache=cached).logits[0]
    state = target.new_state(64, 10)
    target.prefill(state, tokens[:30])
    output = target.verify(state, chain_tree(tokens[30:].tolist()))
    close(output.logits, expected)
    close(target.lm_head(output.hidden), output.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_decoding_equals_generate(kind):
    target, prompt = make_target(kind), random_tokens(9)
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False, "suppress_tokens": [], "pad_token_id": 0}
    expected = library_model(kind).generate(prompt[None], attention_mask=torch.ones(1, 9), **options)[0, 9:].tolist()
    state = target.new_state(64, 1)
    tokens = [greedy(target.prefill(state, prompt).logits[0])]
    while len(tokens) < 40:
        tokens.append(greedy(target.verify(state, chain_tree([tokens[-1]])).logits[0]))
        target.commit(state, [0])
    assert tokens == expected


def greedy(logits):
    """min_new_tokens keeps the library from its stop ids; so do we."""
    logits = logits.clone()
    logits[[5, 7]] = float("-inf")
    return int(logits.argmax())


def check_tree(kind, target, state, prefix, tree):
    """Every node's logits and taps against the library's forward over prefix and root path, leaf by leaf."""
    output = target.verify(state, tree)
    structure = tree.structure
    for leaf in structure.leaves:
        path = structure.path_to(leaf)
        logits, streams = library_forward(kind, prefix + tree.tokens[path].tolist())
        close(output.logits[path], logits[len(prefix) :], 5e-4)
        close(output.taps[path], expected_taps(kind, streams)[len(prefix) :], 5e-4)
    return output


VARIANTS = [
    ("hybrid4", {"gdn_verify": verify, "commit": commit})
    for verify in ("fused", "level_recurrent", "node_recurrent", "path_recurrent")
    for commit in ("replay", "fold")
]
VARIANTS += [
    ("hybrid4", {"gdn_verify": verify, "commit": "select"}) for verify in ("level_recurrent", "node_recurrent")
]
VARIANTS += [("hybrid8", {}), ("dense", {})]


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=lambda x: x if isinstance(x, str) else "-".join(x.values()))
@pytest.mark.parametrize("prompt_length", [1, 11])
def test_tree_rounds_match_library(kind, options, prompt_length):
    """Rounds of random trees, each committing a path that is no prefix of the node order."""
    target = make_target(kind, **options)
    state, prefix = target.new_state(96, 14), random_tokens(prompt_length, seed=2).tolist()
    target.prefill(state, torch.tensor(prefix))
    anchor = 3
    for seed, nodes in enumerate([1, 12, 9, 14]):
        tree = random_tree(anchor, nodes, seed)
        check_tree(kind, target, state, prefix, tree)
        path = tree.structure.path_to(max(range(nodes), key=lambda i: (int(tree.depths[i]), i)))
        target.commit(state, path)
        prefix += tree.tokens[path].tolist()
        anchor = (anchor + 29) % VOCAB
        assert state.length == len(prefix)


def test_the_tree_check_can_fail():
    """A wrong committed state or a wrong path shows in the very next tree."""
    target = make_target("hybrid4")
    state, prefix = target.new_state(64, 12), random_tokens(6).tolist()
    target.prefill(state, torch.tensor(prefix))
    tree = random_tree(3, 8, 1)
    target.verify(state, tree)
    target.commit(state, [0, 1])
    wrong = prefix + tree.tokens[[0, 2]].tolist()
    with pytest.raises(AssertionError):
        check_tree("hybrid4", target, state, wrong, random_tree(3, 8, 2))
