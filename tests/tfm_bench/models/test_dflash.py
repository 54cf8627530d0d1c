"""The drafter's full forward and its masks."""

from __future__ import annotations

import pytest
import torch
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig
from transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant import MuseGlimmerAssistantModel

from tests.tfm_bench.models.tiny_drafters import make_config, make_drafter
from tfm_bench.models.dflash import DFlashDrafter, allowed, block_masks, block_positions
from tfm_bench.models.dflash_config import FULL, SLIDING


def test_state_dict_keys_are_the_published_ones():
    names = {
        "fc.weight": (32, 64),
        "hidden_norm.weight": (32,),
        "norm.weight": (32,),
    }
    for i in range(2):
        names |= {
            f"layers.{i}.input_layernorm.weight": (32,),
            f"layers.{i}.post_attention_layernorm.weight": (32,),
            f"layers.{i}.self_attn.q_proj.weight": (64, 32),
            f"layers.{i}.self_attn.k_proj.weight": (32, 32),
            f"layers.{i}.self_attn.v_proj.weight": (32, 32),
            f"layers.{i}.self_attn.o_proj.weight": (32, 64),
            f"layers.{i}.self_attn.q_norm.weight": (16,),
            f"layers.{i}.self_attn.k_norm.weight": (16,),
            f"layers.{i}.mlp.gate_proj.weight": (48, 32),
            f"layers.{i}.mlp.up_proj.weight": (48, 32),
            f"layers.{i}.mlp.down_proj.weight": (32, 48),
        }
    state = DFlashDrafter(make_config()).state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == names


def nested_loop_mask(anchors, context_length, block, window, causal):
    """The rule of the published recipe, row by row and key by key."""
    rows = [(a, anchor + j) for a, anchor in enumerate(anchors) for j in range(block)]
    mask = torch.zeros(len(rows), context_length + len(rows), dtype=torch.bool)
    for i, (own, q) in enumerate(rows):
        for k in range(context_length):
            mask[i, k] = k < anchors[own] and (window is None or q - k < window)
        for j, (other, k) in enumerate(rows):
            near = window is None or (q - k < window and k - q < window)
            mask[i, context_length + j] = own == other and near and (k <= q or not causal)
    return mask


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("window", [1, 3, 5, 9, 100])
def test_block_masks_match_nested_loops(window, is_causal):
    config = make_config(sliding_window=window, is_causal=is_causal)
    anchors = torch.tensor([[2, 7, 11], [0, 1, 12]])
    masks = block_masks(anchors, 13, config)
    assert list(masks) == [SLIDING, FULL]
    for kind, mask in masks.items():
        for row, expected_anchors in zip(mask, anchors.tolist(), strict=True):
            causal = config.causal_in_block(kind)
            expected = nested_loop_mask(expected_anchors, 13, 4, config.window(kind), causal)
            assert torch.equal(row, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_wide_window_changes_nothing(causal):
    positions, anchor = torch.arange(6, 10), torch.full((4,), 6)
    keys = torch.cat([torch.arange(6), positions])
    is_context, block = torch.arange(10) < 6, torch.zeros(4)
    args = (positions, keys, is_context, block, torch.zeros(10), anchor)
    plain = allowed(*args, window=None, causal_in_block=causal)
    assert torch.equal(plain, allowed(*args, window=10, causal_in_block=causal))
    assert not torch.equal(plain, allowed(*args, window=9, causal_in_block=causal))


def random_inputs(config, batch, context, anchors, seed=1):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, context, len(config.target_layer_ids) * config.hidden_size, generator=generator)
    rows = anchors.shape[1] * config.block_size
    embeddings = torch.randn(batch, rows, config.hidden_size, generator=generator)
    positions = torch.arange(context).expand(batch, -1)
    return features, embeddings, positions, block_positions(anchors, config.block_size)


@pytest.mark.parametrize("is_causal", [None, False])
def test_packed_blocks_equal_blocks_alone(is_causal):
    config = make_config(is_causal=is_causal)
    drafter = make_drafter(config)
    anchors = torch.tensor([[1, 6, 6, 12]])
    features, embeddings, context, positions = random_inputs(config, 1, 14, anchors)
    packed = drafter(features, embeddings, context, positions, block_masks(anchors, 14, config))
    for i, anchor in enumerate(anchors[0].tolist()):
        rows = slice(i * 4, i * 4 + 4)
        masks = block_masks(anchors[:, i : i + 1], anchor, config)
        alone = drafter(features[:, :anchor], embeddings[:, rows], context[:, :anchor], positions[:, rows], masks)
        torch.testing.assert_close(packed[:, rows], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("row", "changes"), [(3, True), (4, False), (9, False)])
def test_only_context_before_the_anchor_matters(row, changes):
    config = make_config()
    drafter, anchors = make_drafter(config), torch.tensor([[4]])
    features, embeddings, context, positions = random_inputs(config, 1, 10, anchors)
    masks = block_masks(anchors, 10, config)
    before = drafter(features, embeddings, context, positions, masks)
    features[:, row] += 1.0
    assert torch.equal(before, drafter(features, embeddings, context, positions, masks)) != changes


def test_gradients_reach_every_parameter():
    config = make_config()
    drafter, anchors = make_drafter(config).requires_grad_(True), torch.tensor([[2, 5]])
    features, embeddings, context, positions = random_inputs(config, 1, 8, anchors)
    drafter(features, embeddings, context, positions, block_masks(anchors, 8, config)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in drafter.parameters())


def test_full_attention_matches_transformers():
    """transformers has one drafter of this family; with full layers it is the same network under other names."""
    config = make_config((FULL, FULL))
    drafter = make_drafter(config)
    reference = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            layer_types=[FULL, FULL],
            block_size=4,
            target_layer_ids=[0, 1],
        )
    )
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    reference.load_state_dict({renamed.get(name, name): tensor for name, tensor in drafter.state_dict().items()})
    anchors = torch.tensor([[9]])
    features, embeddings, context, positions = random_inputs(config, 1, 9, anchors)
    with torch.no_grad():
        expected = reference(noise_embeds=embeddings, context_hidden_states=features).last_hidden_state
    actual = drafter(features, embeddings, context, positions, block_masks(anchors, 9, config))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
