"""What a generation says of its rounds, against a walk over the trees that the engine built."""

import dataclasses

import pytest
import torch

from tests.tfm_bench.tiny_stack import random_stack, shipped_stack
from tfm_bench.config import DEFAULT_VARIANT, STAGES
from tfm_bench.engine import Arm, generate
from tfm_bench.generation import Round
from tfm_bench.measure.invariants import _rounds
from tfm_bench.measure.logit_gap import logit_gap
from tfm_bench.measure.records import DecodeRecord
from tfm_bench.measure.rounds import RoundsRecord
from tfm_bench.tree import TokenTree
from tfm_bench.verification.rules import Rule
from tfm_bench.verification.sample_match import Acceptance, accept

PROMPT = [3, 9, 4]
ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 90), Arm("tfm", 90, 8)]
#        anchor, its children 1 (better) and 2, below 1: 3; below 2: 4 and 5 (better); row 6 is padding
TREE = TokenTree.from_lists([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2], [0.0, -0.5, -1.0, -0.1, -2.0, -0.3], width=7)


def ancestors(tree, node):
    """The node and all above it, the anchor last."""
    return [node] if node == 0 else [node, *ancestors(tree, tree.parents[node].item())]


def spine(tree):
    """From the anchor always the best child, until there is none."""
    nodes = [0]
    while tree.children[nodes[-1]]:
        nodes.append(max(tree.children[nodes[-1]].values(), key=lambda node: tree.edge_logprobs[node].item()))
    return nodes


@pytest.mark.parametrize("arm", ARMS, ids=[arm.method for arm in ARMS])
@pytest.mark.parametrize("staged", [False, True])
def test_rounds_describe_the_trees(arm, staged):
    seen = []
    result = generate(
        random_stack(),
        PROMPT,
        arm,
        temperature=1.0,
        seed=2,
        max_new_tokens=80,
        staged=staged,
        observer=lambda _draft, tree, _output, outcome: seen.append((tree, outcome.path)),
    )
    assert len(result.rounds) == len(seen)
    for index, (done, (tree, path)) in enumerate(zip(result.rounds, seen, strict=True)):
        last = index == len(seen) - 1
        assert done.accepted == len(path) - 1 or (last and done.accepted < len(path))
        assert done.verify_width == tree.width == result.verify_width
        assert done.depth == max(len(ancestors(tree, node)) - 1 for node in range(tree.size))
        common = sum(a == b for a, b in zip(spine(tree), path, strict=False)) - 1
        assert done.spine == min(common, done.accepted)  # where accept is right, its path says the same as the text
    assert sum(result.accepted) + len(result.rounds) == len(result.tokens) - 1
    if arm.method in ("ar", "dflash_chain"):
        assert all(done.spine == done.accepted for done in result.rounds)
    else:  # or nothing above could tell a spine from a path
        assert sum(done.spine for done in result.rounds) < sum(result.accepted)


@pytest.mark.parametrize(
    ("text", "expected"), [([6, 6], 0), ([1, 6, 6], 1), ([1, 3, 6], 2), ([2, 6], 0), ([2, 5, 6], 0), ([2, 4, 6], 0)]
)
def test_the_spine_follows_the_best_scored_children(text, expected):
    done = Round.of(TREE, accepted=0, text=text, stage_ms=None)
    assert (done.spine, done.depth, done.verify_width) == (expected, 2, 7)


def test_the_end_of_the_text_cuts_the_spine_and_padding_has_no_depth():
    assert Round.of(TREE, accepted=1, text=[1, 3], stage_ms=None).spine == 1
    anchor = TokenTree.from_lists([9], [-1], [0.0], width=4)
    assert Round.of(anchor, accepted=0, text=[6], stage_ms=None).depth == 0


@pytest.mark.parametrize("arm", ARMS[1:], ids=[arm.method for arm in ARMS[1:]])
def test_an_acceptance_that_stops_a_node_early_breaks_the_invariant(arm):
    def describe(stack):
        result = generate(stack, PROMPT, arm, temperature=1.0, seed=2, max_new_tokens=60)
        names = ("accepted", "verify_width", "depth", "spine")
        lists = {name: [getattr(done, name) for done in result.rounds] for name in names}
        same = {"variant": DEFAULT_VARIANT, "rule": "sample_match"}
        record = DecodeRecord.model_construct(budget=arm.budget, verify_width=result.verify_width, **same)
        return result.tokens, list(_rounds(record, RoundsRecord.model_construct(**lists)))

    def stops_early(tree, *arguments, **options):
        outcome = accept(tree, *arguments, **options)
        if len(outcome.path) == 1:
            return outcome
        return Acceptance(outcome.path[:-1], int(tree.tokens[outcome.path[-1]]))  # the very text, in more rounds

    text, claims = describe(shipped_stack())
    assert all(claim.holds for claim in claims)
    same, claims = describe(dataclasses.replace(shipped_stack(), rule=Rule("sample_match", stops_early)))
    assert same == text
    assert {claim.what.split()[0] for claim in claims if not claim.holds} == {"spine"}


def test_stage_times_of_the_rounds_sum_to_those_of_the_generation():
    result = generate(random_stack(), PROMPT, ARMS[2], temperature=1.0, seed=2, max_new_tokens=40, staged=True)
    per_round = result.round_stage_ms
    assert set(per_round) == {*STAGES, "other"}
    assert {len(times) for times in per_round.values()} == {len(result.rounds)}
    assert sum(map(sum, per_round.values())) == pytest.approx(result.decode_ms)
    assert min(map(min, per_round.values())) > 0
    unstaged = generate(random_stack(), PROMPT, ARMS[2], temperature=1.0, seed=2, max_new_tokens=40)
    assert unstaged.round_stage_ms is None


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_gap_is_that_of_the_scores_which_chose_the_token(temperature, monkeypatch):
    stack, scores = shipped_stack(), []
    tokens = generate(stack, PROMPT, Arm("ar"), temperature=temperature, seed=2, max_new_tokens=20).tokens
    add = torch.add
    monkeypatch.setattr(torch, "add", lambda *a, **k: scores.append(add(*a, **k)) or scores[-1])
    generate(stack, PROMPT, Arm("ar"), temperature=temperature or 1e-9, seed=2, max_new_tokens=20)
    for index in (0, 1, 19):
        assert int(scores[index].argmax()) == tokens[index]
        for found in (scores[index].topk(5).indices[-1].item(), tokens[index]):  # not the second choice alone
            choice = {"expected": tokens[index], "found": found}
            gap = logit_gap(stack, PROMPT, tokens[:index], **choice, temperature=temperature, seed=2)
            assert gap == pytest.approx((scores[index][tokens[index]] - scores[index][found]).item(), abs=1e-4)
