"""config.json of a drafter, as published and as it should not be."""

from __future__ import annotations

import json
import math

import pytest

from tfm_bench.errors import UserError
from tfm_bench.models.dflash_config import FULL, SLIDING, DFlashConfig, default_taps

PUBLISHED = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000,
    "rope_scaling": None,
    "attention_bias": False,
    "hidden_act": "silu",
    "layer_types": [SLIDING] * 4 + [FULL],
    "sliding_window": 2048,
    "use_sliding_window": True,
    "max_window_layers": 5,
    "num_target_layers": 64,
    "vocab_size": 248320,
}


def published(**changes):
    return {**PUBLISHED, **changes}


def test_config_reads_published_keys():
    config = DFlashConfig.from_dict(PUBLISHED)
    assert config.target_layer_ids == (1, 16, 31, 46, 61)
    assert (config.block_size, config.mask_token_id, config.sliding_window) == (16, 248070, 2048)
    assert [config.window(kind) for kind in config.layer_types] == [2048] * 4 + [None]
    assert [config.causal_in_block(kind) for kind in config.layer_types] == [True] * 4 + [False]


@pytest.mark.parametrize("is_causal", [True, False])
def test_is_causal_applies_to_every_layer(is_causal):
    config = DFlashConfig.from_dict(published(is_causal=is_causal))
    assert {config.causal_in_block(kind) for kind in config.layer_types} == {is_causal}


def test_nested_block_size_comes_first():
    nested = {**PUBLISHED["dflash_config"], "block_size": 8, "selector_top_k": 16}
    assert DFlashConfig.from_dict(published(dflash_config=nested)).block_size == 8


def test_rope_theta_inside_rope_parameters():
    values = published(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    del values["rope_theta"]
    assert DFlashConfig.from_dict(values).rope_theta == 5e5


@pytest.mark.parametrize(
    ("target_layers", "draft_layers", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (64, 5, (1, 16, 31, 46, 61)), (32, 5, (1, 8, 15, 22, 29)), (12, 1, (6,))],
)
def test_default_taps(target_layers, draft_layers, expected):
    assert default_taps(target_layers, draft_layers) == expected


def test_taps_default_to_the_rule():
    values = published(dflash_config={"mask_token_id": 7}, num_target_layers=36)
    assert DFlashConfig.from_dict(values).target_layer_ids == (1, 9, 17, 25, 33)


@pytest.mark.parametrize("key", ["hidden_size", "layer_types", "sliding_window", "block_size", "dflash_config"])
def test_missing_key_is_named(key):
    values = {k: v for k, v in PUBLISHED.items() if k != key}
    with pytest.raises(UserError, match=rf"config.json: key {key} is missing"):
        DFlashConfig.from_dict(values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "5120"),
        ("hidden_size", True),
        ("block_size", 0),
        ("layer_types", [FULL] * 4),
        ("layer_types", ["chunked"] * 5),
        ("rope_scaling", {"type": "yarn"}),
        ("attention_bias", True),
        ("is_causal", "yes"),
        ("block_size", 1),
        ("block_size", 10**12),
        ("head_dim", 63),
        ("num_attention_heads", 30),
        ("sliding_window", 10**30),
        ("rope_theta", 0),
        ("rope_theta", -1.0),
        ("rope_theta", math.nan),
        ("rope_theta", math.inf),
        ("rope_theta", 10**400),
        ("rms_norm_eps", math.nan),
        ("rms_norm_eps", 0.0),
        ("rope_parameters", "plain"),
        ("rope_parameters", [1]),
        ("num_target_layers", "64"),
        ("vocab_size", 0),
    ],
)
def test_wrong_value_is_named(key, value):
    with pytest.raises(UserError, match=f"key {key} is .*; accepted"):
        DFlashConfig.from_dict(published(**{key: value}))


@pytest.mark.parametrize("taps", [[True, 16], [1.0], [-1], [], "1", [None]])
def test_taps_are_layer_numbers(taps):
    with pytest.raises(UserError, match=r"key target_layer_ids is .*; accepted"):
        DFlashConfig.from_dict(published(dflash_config={"mask_token_id": 7, "target_layer_ids": taps}))


@pytest.mark.parametrize(("key", "sizes"), [("num_target_layers", (None, 248320)), ("vocab_size", (64, None))])
def test_the_target_that_a_drafter_is_for_need_not_be_named(key, sizes):
    config = DFlashConfig.from_dict(published(**{key: None}))
    assert (config.num_target_layers, config.vocab_size) == sizes


def test_config_from_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert DFlashConfig.from_file(tmp_path) == DFlashConfig.from_dict(PUBLISHED)


@pytest.mark.parametrize("rope", [{"rope_type": "yarn", "rope_theta": 1e4}, {"partial_rotary_factor": 0.25}])
def test_rotary_forms_that_are_not_built_are_refused(rope):
    values = published(rope_parameters=rope)
    with pytest.raises(UserError, match="rope_parameters"):
        DFlashConfig.from_dict(values)
