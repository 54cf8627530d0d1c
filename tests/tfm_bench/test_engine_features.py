"""What a round hands to the next one: the features of the accepted nodes, which losslessness cannot see.

Wrong features only make worse drafts, so the tokens stay right. The oracle is a new sequence that reads the whole text
as its prompt.
"""

import pytest
import torch

from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import Arm, _Sequence
from tfm_bench.generation import StageClock
from tfm_bench.verification.sample_match import KeyedNoise

PROMPT, NEW_TOKENS = [3, 9, 4], 30
NOISE, TEMPERATURE = KeyedNoise(2), 1.0
# Wide enough that blind drafts are right two tokens deep now and then.
ARMS = [Arm("ddtree", 90), Arm("tfm", 90, 8)]
each_arm = pytest.mark.parametrize("arm", ARMS, ids=["ddtree", "tfm"])


@torch.inference_mode()
def texts(stack, arm, observer=None):
    """The sequence and its whole text (prompt, tokens, the next anchor last), after the prefill and every round."""
    sequence = _Sequence(stack, arm, len(PROMPT) + NEW_TOKENS, observer)
    text = [*PROMPT, sequence.prefill(PROMPT, TEMPERATURE, NOISE)]
    yield sequence, text
    while len(text) < len(PROMPT) + NEW_TOKENS:
        text += sequence.round(text[-1], TEMPERATURE, NOISE, StageClock(False, stack.target.device)).emitted
        yield sequence, text


def context_rows(sequence):
    """Drafter keys and values of committed tokens."""
    block, context = sequence.stack.drafter.config.block_size, sequence.context
    rows = slice(block, block + context.length)
    return context.keys[:, :, rows], context.values[:, :, rows]


def assert_as_if_prefilled(sequence, text):
    """Drafter context, target hidden and the last draw are those of a sequence whose prompt is the text so far."""
    fresh = _Sequence(sequence.stack, sequence.arm, len(text), None)
    assert fresh.prefill(text[:-1], TEMPERATURE, NOISE) == text[-1]
    assert sequence.context.length == sequence.state.length == len(text) - 1
    actual, expected = ((*context_rows(s), s.target_hidden) for s in (sequence, fresh))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["hybrid", "dense"])
@each_arm
def test_every_round_leaves_the_features_of_the_whole_text(kind, arm):
    accepted = []

    def observer(_draft, tree, _output, outcome):
        accepted.append((outcome.path, tree.width))

    for sequence, text in texts(random_stack(kind), arm, observer):
        assert_as_if_prefilled(sequence, text)
    # Only such paths tell the rows of a path from the first rows, and its last node from the last row.
    assert any(path != list(range(len(path))) for path, _ in accepted)
    assert any(path[-1] != width - 1 for path, width in accepted)
    assert max(len(path) for path, _ in accepted) > 2


@each_arm
@pytest.mark.parametrize("field", ["taps", "hidden"])
def test_features_of_other_nodes_are_noticed(field, arm, monkeypatch):
    stack = random_stack()
    verify = stack.target.verify

    def displaced(state, tree):
        output = verify(state, tree)
        return output._replace(**{field: getattr(output, field).roll(1, dims=0)})

    monkeypatch.setattr(stack.target, "verify", displaced)
    rounds = texts(stack, arm)
    assert_as_if_prefilled(*next(rounds))
    with pytest.raises(AssertionError, match="not close"):
        assert_as_if_prefilled(*next(rounds))
