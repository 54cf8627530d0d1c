"""The drafter with its cache against one full forward."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from tests.tfm_bench.models.tiny_drafters import make_config, make_drafter
from tfm_bench.errors import UserError
from tfm_bench.models.dflash import block_masks, block_positions
from tfm_bench.models.dflash_config import FULL, SLIDING
from tfm_bench.models.dflash_runtime import DrafterRuntime


def full_forward(drafter, features, embeddings, start):
    """The training forward for one block: the oracle."""
    config, anchors = drafter.config, torch.tensor([[start]])
    hidden = drafter(
        features[None, :start],
        embeddings[None],
        torch.arange(start)[None],
        block_positions(anchors, config.block_size),
        block_masks(anchors, start, config),
    )
    return hidden[0, 1:]


CONFIGS = {
    "sliding_and_full": make_config(),
    "full": make_config((FULL, FULL)),
    "sliding": make_config((SLIDING, SLIDING, SLIDING)),
    "causal": make_config(is_causal=True),
    "bidirectional": make_config(is_causal=False),
    "window_below_block": make_config(sliding_window=2, is_causal=False),
    "no_groups": make_config(num_key_value_heads=4),
    "one_kv_head": make_config(num_key_value_heads=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_cached_drafts_equal_full_forward(name):
    """Uneven pieces; contexts shorter and longer than the window; a draft after each piece leaves no trace."""
    config = CONFIGS[name]
    drafter = make_drafter(config)
    reference = make_drafter(config)
    runtime = DrafterRuntime(drafter)
    state, start = runtime.new_state(max_length=40), 0
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(40, 64, generator=generator)
    for piece in [0, 1, 2, 1, 5, 11, 3, 1, 16]:
        runtime.append(state, features[start : start + piece], start)
        start += piece
        embeddings = torch.randn(config.block_size, 32, generator=generator)
        actual = runtime.draft(state, embeddings, start)
        torch.testing.assert_close(actual, full_forward(reference, features, embeddings, start), rtol=1e-4, atol=1e-5)
    assert state.length == start == 40


def test_modules_still_work_after_fusion():
    config = make_config()
    drafter, reference = make_drafter(config), make_drafter(config)
    DrafterRuntime(drafter)
    assert all(torch.equal(a, b) for a, b in zip(drafter.parameters(), reference.parameters(), strict=True))


@pytest.mark.parametrize(("row", "changes"), [(0, False), (8, False), (9, False), (10, True), (14, True)])
def test_window_hides_old_context(row, changes):
    """Sliding layers alone, window 6, 15 rows, block 15 .. 18: rows 15 - 5 and later reach the anchor's keys.

    Two layers would not reach further: what a block row hands on comes from its own window of the context."""
    config = CONFIGS["sliding"]
    runtime = DrafterRuntime(make_drafter(config))
    features, embeddings = torch.randn(15, 64), torch.randn(4, 32)
    drafts = []
    for offset in (0.0, 1.0):
        features[row] += offset
        state = runtime.new_state(20)
        runtime.append(state, features, 0)
        drafts.append(runtime.draft(state, embeddings, 15))
    assert torch.equal(*drafts) != changes


def test_wrong_rows_are_refused():
    runtime = DrafterRuntime(make_drafter(make_config()))
    state = runtime.new_state(8)
    runtime.append(state, torch.randn(3, 64), 0)
    with pytest.raises(ValueError, match="do not follow 3"):
        runtime.append(state, torch.randn(2, 64), 2)
    with pytest.raises(ValueError, match="do not follow 3 of 8"):
        runtime.append(state, torch.randn(6, 64), 3)
    with pytest.raises(ValueError, match="a block of 4 rows at 3"):
        runtime.draft(state, torch.randn(4, 32), 2)
    with pytest.raises(ValueError, match="a block of 4 rows at 3"):
        runtime.draft(state, torch.randn(5, 32), 3)


def test_bfloat16_follows_fp32():
    config = make_config()
    wide, narrow = DrafterRuntime(make_drafter(config)), DrafterRuntime(make_drafter(config).to(torch.bfloat16))
    features, embeddings = torch.randn(12, 64), torch.randn(4, 32)
    drafts = []
    for runtime in (wide, narrow):
        state = runtime.new_state(16)
        runtime.append(state, features.to(runtime.dtype), 0)
        drafts.append(runtime.draft(state, embeddings.to(runtime.dtype), 12).float())
    assert (drafts[0] - drafts[1]).norm() / drafts[0].norm() < 0.03


def test_loads_a_published_folder(tmp_path):
    config = make_config()
    drafter = make_drafter(config)
    values = {
        **{k: v for k, v in dataclasses.asdict(config).items() if k not in ("mask_token_id", "target_layer_ids")},
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1]},
        "layer_types": list(config.layer_types),
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file(drafter.state_dict(), tmp_path / "model.safetensors")
    runtime = DrafterRuntime.from_pretrained(tmp_path, dtype=torch.float32)
    features, embeddings = torch.randn(9, 64), torch.randn(4, 32)
    state = runtime.new_state(16)
    runtime.append(state, features, 0)
    actual = runtime.draft(state, embeddings, 9)
    torch.testing.assert_close(actual, full_forward(drafter, features, embeddings, 9), rtol=1e-4, atol=1e-5)
    (tmp_path / "config.json").write_text(json.dumps({**values, "intermediate_size": 64}))
    with pytest.raises(UserError, match=r"tensor layers.0.mlp.gate_proj.weight has shape \[48, 32\], config.json asks"):
        DrafterRuntime.from_pretrained(tmp_path, dtype=torch.float32)
