"""Stacks with the shapes of real checkpoints and random weights, made on the device: what a round costs needs no more.

Sizes: Qwen/Qwen3.6-27B, z-lab/Qwen3.6-27B-DFlash and trymirai/weaver as published; and a tiny stack of the same form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Stack
from tfm_bench.latency_config import StackShapes
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import FULL, SLIDING, DFlashConfig
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.memory_plan import StackConfigs
from tfm_bench.models.target import Target
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

WEIGHT_STD = 0.02


class Sizes(NamedTuple):
    """Configs of the three parts. target: keys of the library's config, its layers as published."""

    target: dict[str, Any]
    drafter: DFlashConfig
    weaver: WeaverConfig


_27B = Sizes(
    target={
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "tie_word_embeddings": False,
    },
    drafter=DFlashConfig(
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=5,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        block_size=16,
        mask_token_id=248070,
        target_layer_ids=(1, 16, 31, 46, 61),
        layer_types=(SLIDING, SLIDING, SLIDING, SLIDING, FULL),
        sliding_window=2048,
    ),
    weaver=WeaverConfig(
        d_model=5120, d_embed=5120, d_rank=2048, num_layers=1, num_heads=16, mlp_dim=2048, K=15, candidate_pool_size=512
    ),
)
_TINY = Sizes(
    target=_27B.target
    | {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    drafter=dataclasses.replace(
        _27B.drafter,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        mask_token_id=300,
    ),
    weaver=WeaverConfig(
        d_model=64, d_embed=64, d_rank=32, num_layers=1, num_heads=2, mlp_dim=32, K=15, candidate_pool_size=32
    ),
)
SIZES: dict[StackShapes, Sizes] = {"27b": _27B, "tiny": _TINY}


def all_layers(shapes: StackShapes) -> int:
    """Layers of the published target."""
    return int(SIZES[shapes].target["num_hidden_layers"])


def target_config(shapes: StackShapes, layers: int) -> Qwen3_5TextConfig:
    """The library's config of a target with so many layers: one of attention after every three of Gated DeltaNet."""
    return Qwen3_5TextConfig(**SIZES[shapes].target | {"num_hidden_layers": layers})


def drafter_config(shapes: StackShapes, layers: int) -> DFlashConfig:
    """The drafter's config; in a target of fewer layers its taps stand where they stand in the whole one."""
    whole, config = all_layers(shapes), SIZES[shapes].drafter
    return dataclasses.replace(config, target_layer_ids=tuple(tap * layers // whole for tap in config.target_layer_ids))


def stack_configs(shapes: StackShapes, layers: int) -> StackConfigs:
    """Of the three parts."""
    return StackConfigs(target_config(shapes, layers), drafter_config(shapes, layers), SIZES[shapes].weaver)


def random_stack(
    shapes: StackShapes, *, layers: int, dtype: torch.dtype, device: torch.device, gdn_verify: str = "fused"
) -> Stack:
    """A stack that stops at no token and has no tokenizer. Its weights are made on the device, in dtype."""
    torch.manual_seed(0)
    config, sizes = drafter_config(shapes, layers), SIZES[shapes]
    with torch.no_grad(), _made_as(dtype, device):
        model = AutoModelForCausalLM.from_config(target_config(shapes, layers), dtype=dtype)
        drafter, weaver = DFlashDrafter(config), Weaver(sizes.weaver)
        # A fresh Weaver has a zero query head: its trees would be those of the drafter alone.
        weaver.lm_head_query_in.weight.normal_(std=WEIGHT_STD)
    target = Target(
        model.eval().requires_grad_(False),
        tap_layer_ids=config.target_layer_ids,
        gdn_verify=gdn_verify,
        commit="replay",
    )
    runtime = WeaverRuntime(weaver.requires_grad_(False), target.embedding, target.head.weight)
    return Stack(
        Path(f"random {shapes}"), target, DrafterRuntime(drafter.requires_grad_(False)), runtime, None, frozenset()
    )


@contextmanager
def _made_as(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Parameters that are made inside have this dtype and device from the start: none is made twice."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
