"""Drift of the commits: against an exact recurrence, a fresh prefill, and a commit that is wrong on purpose."""

import pytest
import torch

from kernels.gdn_tree.naive import naive_tree_gated_delta_rule
from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import Arm, generate
from tfm_bench.measure import commit_drift
from tfm_bench.measure.commit_drift import COMMITS, advance, recorded_rounds
from tfm_bench.measure.kernel_problems import relative_rms

PROMPT = [3, 9, 4, 17, 8]
ARM = Arm("tfm", budget=8, expansion_width=2)
OPTIONS = {"temperature": 1.0, "seed": 0, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def stack():
    return random_stack()


@pytest.fixture(scope="module")
def rounds(stack):
    return recorded_rounds(stack, PROMPT, ARM, **OPTIONS)


def text_of(rounds):
    return [token for tree, path in rounds for token in tree.tokens[path].tolist()]


@torch.inference_mode()
def committed(target, rounds, commit, room=0):
    state = target.new_state(len(text_of(rounds)) + room, max(tree.width for tree, _ in rounds))
    for tree, path in rounds:
        target.verify(state, tree)
        state.commit(path, commit)
    return state


def test_rounds_are_the_text_and_some_accept_drafts(stack, rounds):
    tokens = generate(stack, PROMPT, ARM, **OPTIONS).tokens
    assert text_of(rounds)[: len(PROMPT) + 59] == [*PROMPT, *tokens[:-1]]
    assert len(rounds[0].path) == len(PROMPT)
    assert any(len(path) > 1 for _, path in rounds[1:])
    assert any(tree.width > len(path) for tree, path in rounds[1:])


@pytest.mark.parametrize("commit", COMMITS)
def test_committed_states_are_those_of_a_prefill(stack, rounds, commit):
    text = text_of(rounds)
    fresh = stack.target.new_state(len(text), 1)
    stack.target.prefill(fresh, torch.tensor(text))
    state = committed(stack.target, rounds, commit)
    assert relative_rms(state.recurrent, fresh.recurrent.double()) < 1e-5
    assert relative_rms(committed(stack.target, rounds[:-1], commit).recurrent, fresh.recurrent.double()) > 1e-3


@torch.inference_mode()
def test_the_truth_is_the_definition_in_float64(stack, rounds):
    target = stack.target
    state = committed(target, rounds[:3], "replay", room=8)
    start, (tree, path) = state.recurrent.double(), rounds[3]
    target.verify(state, tree)
    parts = {
        name: [getattr(layer, name)[:, path].double() for layer in state.pending] for name in ("k", "v", "g", "beta")
    }
    chain = torch.arange(-1, len(path) - 1)
    expected = [
        naive_tree_gated_delta_rule(k, k, v, g, beta, chain, start[i : i + 1])[1][:, -1]
        for i, (k, v, g, beta) in enumerate(zip(*parts.values(), strict=True))
    ]
    truth = start.clone()
    advance(truth, state, path)
    assert relative_rms(truth, torch.cat(expected)) < 1e-13
    state.commit(path, "replay")
    assert 0 < relative_rms(state.recurrent, truth) < 1e-6


def test_drift_is_small_and_measured_at_the_checkpoints(stack, rounds):
    found = list(commit_drift.commit_drift(stack.target, rounds, every=16))
    assert [drift.commit for drift in found] == list(COMMITS) * (len(found) // 2)
    tokens = [drift.tokens for drift in found[::2]]
    assert [number // 16 for number in tokens] == [1, 2, 3]
    for drift in found:
        assert 0 < drift.state < 1e-5
        assert drift.logits < 1e-5


def test_drift_of_a_commit_that_errs_shows(stack, rounds, monkeypatch):
    kernels = stack.target.kernels

    def wrong(*, state, **inputs):
        kernels.commit["fold"](state=state, **inputs)
        state.mul_(1.001)

    clumsy = kernels._replace(commit={**kernels.commit, "fold": wrong})
    monkeypatch.setattr(stack.target, "kernels", clumsy)
    found = {drift.commit: drift for drift in commit_drift.commit_drift(stack.target, rounds, every=32)}
    assert found["fold"].state > 5e-4
    assert found["fold"].logits > 1e-6
    assert found["replay"].state < 1e-5
