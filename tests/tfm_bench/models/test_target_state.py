"""What verify and commit may touch, what must not matter, and which calls are refused."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.tfm_bench.models.tiny_targets import (
    KINDS,
    TAPS,
    VOCAB,
    chain_tree,
    close,
    library_forward,
    library_model,
    make_target,
    random_tokens,
    random_tree,
)
from tfm_bench.errors import UserError
from tfm_bench.models.target import Target
from tfm_bench.tree import TokenTree


def committed(state):
    rows = slice(state.scratch, state.scratch + state.length)
    kept = [state.keys[:, :, rows], state.values[:, :, rows], state.recurrent, state.conv, state.hidden_context]
    return [tensor.clone() for tensor in kept], state.length


@pytest.mark.parametrize("verify", ["fused", "level_recurrent", "node_recurrent", "path_recurrent"])
def test_verify_leaves_committed_state_alone(verify):
    target = make_target("hybrid4", gdn_verify=verify)
    state = target.new_state(64, 16)
    target.prefill(state, random_tokens(20))
    before, length = committed(state)
    addresses = [tensor.data_ptr() for tensor in (state.keys, state.values, state.recurrent, state.conv)]
    first = target.verify(state, random_tree(3, 16, 1)).logits
    target.verify(state, random_tree(4, 9, 2))
    after, length_after = committed(state)
    assert length == length_after
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(first, target.verify(state, random_tree(3, 16, 1)).logits)
    target.commit(state, [0])
    assert addresses == [tensor.data_ptr() for tensor in (state.keys, state.values, state.recurrent, state.conv)]
    assert not torch.equal(before[2], state.recurrent)


@pytest.mark.parametrize("kind", ["hybrid4", "dense"])
def test_padding_does_not_matter(kind):
    target = make_target(kind)
    outputs = []
    for width, filler in ((9, 0), (16, 0), (16, 50)):
        state = target.new_state(64, 16)
        target.prefill(state, random_tokens(20))
        tree = random_tree(3, 9, 1, width)
        tree.tokens[9:] = filler
        logits = target.verify(state, tree).logits[:9]
        path = tree.structure.path_to(8)
        target.commit(state, path)
        outputs.append((logits, target.verify(state, chain_tree([1, 2])).logits))
    for a, b, c in zip(*outputs, strict=True):
        close(a, b)
        assert torch.equal(b, c)


@pytest.mark.parametrize("kind", ["hybrid4", "dense"])
def test_only_descendants_feel_a_changed_token(kind):
    target = make_target(kind)
    state = target.new_state(64, 16)
    target.prefill(state, random_tokens(20))
    tree = random_tree(3, 16, 1)
    before = target.verify(state, tree).logits
    for node in (2, 5):
        changed = TokenTree(tree.tokens.clone(), tree.parents, tree.edge_logprobs, tree.size)
        changed.tokens[node] = (changed.tokens[node] + 1) % VOCAB
        same = (target.verify(state, changed).logits == before).all(dim=-1)
        assert torch.equal(~same, tree.structure.ancestors[:, node])


def test_rejected_nodes_leave_no_trace():
    """The same path out of two different trees, then the same tree again."""
    target, outputs = make_target("hybrid4"), []
    for seed in (1, 2):
        state = target.new_state(64, 16)
        target.prefill(state, random_tokens(20))
        other = random_tokens(16, seed).tolist()
        tree = TokenTree.from_lists([3, other[1], 8, other[3], 9], [-1, 0, 0, 1, 2], [0.0] * 5, 5)
        target.verify(state, tree)
        target.commit(state, [0, 2, 4])
        outputs.append(target.verify(state, random_tree(3, 6, 1)).logits)
    assert torch.equal(*outputs)


def test_rounded_extent_changes_nothing():
    """A GPU reads a rounded number of context rows, the rest of them masked."""
    outputs = []
    for step in (1, 16):
        target = make_target("hybrid4")
        state = target.new_state(40, 16)
        state.extent_step = step
        target.prefill(state, random_tokens(20))
        assert state.extent == (20 if step == 1 else 32)
        logits = target.verify(state, random_tree(3, 9, 1)).logits
        target.commit(state, [0])
        outputs.append((logits, target.verify(state, chain_tree([4])).logits))
    close(*(torch.cat(pair) for pair in outputs), 1e-5)


def test_prefill_continues_a_sequence():
    target, tokens = make_target("hybrid4"), random_tokens(30)
    state = target.new_state(64, 1)
    target.prefill(state, tokens[:12])
    close(target.prefill(state, tokens[12:]).logits[0], library_forward("hybrid4", tokens.tolist())[0][-1])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_shared_and_the_model_still_works(kind):
    model = copy.deepcopy(library_model(kind))
    target = Target(model, tap_layer_ids=TAPS[kind])
    tokens = random_tokens(10)[None]
    close(model(tokens).logits, library_model(kind)(tokens).logits)
    mlp, own = model.model.layers[0].mlp, target.layers[0].mlp
    assert mlp.up_proj.weight.untyped_storage().data_ptr() == own.gate_up.weight.untyped_storage().data_ptr()
    assert target.embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_follows_fp32(kind):
    narrow = Target(copy.deepcopy(library_model(kind)).to(torch.bfloat16), tap_layer_ids=TAPS[kind])
    outputs = []
    for target in (make_target(kind), narrow):
        state = target.new_state(64, 12)
        target.prefill(state, random_tokens(20))
        target.verify(state, random_tree(3, 12, 1))
        target.commit(state, [0, *random_tree(3, 12, 1).structure.path_to(11)[1:]])
        output = target.verify(state, random_tree(4, 12, 2))
        assert output.logits.dtype == output.taps.dtype == target.dtype
        assert state.recurrent.dtype == torch.float32
        outputs.append(output.logits.float())
    assert (outputs[0] - outputs[1]).norm() / outputs[0].norm() < 0.15


def test_properties():
    target = make_target("hybrid4")
    assert (target.hidden_size, target.vocab_size, target.stop_ids) == (64, VOCAB, (5, 7))
    tokens = torch.tensor([1, 5])
    assert torch.equal(target.embed(tokens), library_model("hybrid4").model.embed_tokens(tokens))


def test_wrong_calls_are_refused():
    target = make_target("hybrid4")
    state = target.new_state(10, 4)
    with pytest.raises(ValueError, match="accepted are 1 to 10"):
        target.prefill(state, random_tokens(11))
    with pytest.raises(ValueError, match="accepted are 1 to 10"):
        target.prefill(state, random_tokens(0))
    target.prefill(state, random_tokens(8))
    with pytest.raises(ValueError, match="the tree has 5 nodes; the state was made for 4"):
        target.verify(state, random_tree(1, 5, 0))
    with pytest.raises(ValueError, match="a verified tree of 0 nodes"):
        target.commit(state, [0])
    target.verify(state, chain_tree([1, 2, 3]))
    before, _ = committed(state)
    for path, reason in (
        ([], "start at the anchor"),
        ([1], "start at"),
        ([0, 3], "start at"),
        ([0, 1, 2], "do not fit"),
    ):
        with pytest.raises(ValueError, match=reason):
            target.commit(state, path)
    assert all(torch.equal(a, b) for a, b in zip(before, committed(state)[0], strict=True))
    target.commit(state, [0, 1])
    with pytest.raises(ValueError, match="a verified tree of 0 nodes"):
        target.commit(state, [0])


def test_select_needs_stored_states():
    target = make_target("hybrid4", gdn_verify="fused", commit="select")
    with pytest.raises(ValueError, match="stores no states"):
        target.prefill(target.new_state(10, 4), random_tokens(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gdn_verify": "magic"}, "gdn_verify is 'magic'; accepted are fused"),
        ({"commit": "rewind"}, "commit is 'rewind'; accepted are replay"),
        ({"tap_layer_ids": [0, 4]}, r"target_layer_ids is \[0, 4\]; accepted are layers 0 to 3"),
        ({"tap_layer_ids": []}, "target_layer_ids is"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        Target(library_model("hybrid4"), **{"tap_layer_ids": [0], **options})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type"),
    ],
)
def test_unsupported_models_are_refused(changes, key):
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "head_dim": 8}
    config = Qwen3Config(num_hidden_layers=2, num_key_value_heads=1, **sizes, **changes)
    with pytest.raises(UserError, match=f"key {key}"):
        Target(Qwen3ForCausalLM(config), tap_layer_ids=[0])
