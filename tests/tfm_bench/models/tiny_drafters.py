"""Random drafters of two layers: what the drafter's tests share."""

from __future__ import annotations

import dataclasses

import torch

from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import FULL, SLIDING, DFlashConfig


def make_config(layer_types=(SLIDING, FULL), **changes):
    config = DFlashConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=len(layer_types),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        block_size=4,
        mask_token_id=3,
        target_layer_ids=(0, 1),
        layer_types=tuple(layer_types),
        sliding_window=6,
    )
    return dataclasses.replace(config, **changes)


def make_drafter(config):
    """Random weights, norms included, at a scale where attention is far from uniform."""
    torch.manual_seed(0)
    drafter = DFlashDrafter(config)
    for name, parameter in drafter.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 0.15)
    return drafter.requires_grad_(False)
