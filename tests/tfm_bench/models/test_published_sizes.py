"""The published models at their real dimensions, without memory: names, shapes and parameter counts."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import Qwen3_5TextConfig, Qwen3Config

from tests.tfm_bench.models import published_checkpoints as published
from tests.tfm_bench.models import published_shapes as shapes_of
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import FULL, SLIDING, DFlashConfig
from tfm_bench.models.target_loading import expected_shapes
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

WEAVER = {"d_model": 5120, "d_embed": 5120, "d_rank": 2048, "num_layers": 1, "num_heads": 16, "mlp_dim": 2048}
WEAVER |= {"K": 15, "candidate_pool_size": 512}
# hidden, MLP, layer types, taps; 32 query heads and 8 key heads of 128 each.
DRAFTERS = {
    "Qwen3.6-27B-DFlash": (5120, 17408, [SLIDING] * 4 + [FULL], [1, 16, 31, 46, 61], 1_730_213_120),
    "Qwen3-4B-DFlash-b16": (2560, 9728, [FULL] * 5, [1, 9, 17, 25, 33], 537_427_200),
    "Qwen3-8B-DFlash-b16": (4096, 12288, [FULL] * 5, [1, 9, 17, 25, 33], 1_048_626_432),
}


def counted(shapes):
    return sum(math.prod(shape) for shape in shapes.values())


def shapes(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize(("version", "parameters"), [(1, 56_694_784), (2, 60_860_416)])
def test_the_published_weaver_has_its_size(version, parameters):
    extra = {"activation": "swiglu", "rope_base": 10000.0} if version == 2 else {}
    with torch.device("meta"):
        weaver = Weaver(WeaverConfig.from_dict(WEAVER | extra, "config"))
    assert shapes(weaver) == shapes_of.weaver_shapes(version, width=5120, rank=2048, mlp=2048, depths=15)
    assert sum(parameter.numel() for parameter in weaver.parameters()) == parameters


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_published_drafter_has_its_size(name):
    hidden, mlp, kinds, taps, parameters = DRAFTERS[name]
    values = published.DRAFTER_CONFIG | {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_types": kinds,
        "sliding_window": 2048,
        "dflash_config": {"mask_token_id": 248070, "target_layer_ids": taps},
    }
    with torch.device("meta"):
        drafter = DFlashDrafter(DFlashConfig.from_dict(values))
    assert shapes(drafter) == shapes_of.drafter_shapes(
        hidden=hidden, mlp=mlp, heads=32, kv_heads=8, dim=128, taps=len(taps)
    )
    assert sum(parameter.numel() for parameter in drafter.parameters()) == parameters


def test_the_text_model_of_qwen36_27b_has_its_size():
    config = Qwen3_5TextConfig(
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        num_attention_heads=24,
        num_key_value_heads=4,
        linear_num_value_heads=48,
    )
    found = expected_shapes(config)
    layers = {"linear_attention": 0, "full_attention": 0}
    for kind in config.layer_types:
        layers[kind] += 1
    assert layers == {"linear_attention": 48, "full_attention": 16}
    mlp = 3 * 5120 * 17408 + 2 * 5120
    attention = 5120 * 256 * (2 * 24 + 4 + 4 + 24) + 2 * 256
    gdn = 5120 * (10240 + 6144 + 48 + 48) + 6144 * 5120 + 10240 * 4 + 48 + 48 + 128
    assert counted(found) == 2 * 248320 * 5120 + 5120 + 64 * mlp + 16 * attention + 48 * gdn == 26_895_998_464
    assert found["model.layers.0.linear_attn.conv1d.weight"] == (10240, 1, 4)


@pytest.mark.parametrize(
    ("hidden", "mlp", "tied", "billions"), [(2560, 9728, True, 4.02), (4096, 12288, False, 8.19)], ids=["4b", "8b"]
)
def test_dense_targets_have_their_size(hidden, mlp, tied, billions):
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
    )
    found = expected_shapes(config)
    assert ("lm_head.weight" in found) != tied
    assert round(counted(found) / 1e9, 2) == billions
