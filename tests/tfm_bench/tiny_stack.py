"""A random stack of a few layers, with drafts that are sometimes right, and the shipped one."""

import dataclasses
from functools import cache
from pathlib import Path

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM

from tests.tfm_bench.models.tiny_drafters import make_config
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Stack
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import FULL
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.target import Target
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig

VOCAB, HIDDEN, BLOCK = 24, 48, 8
SHIPPED = Path(__file__).parents[2] / "checkpoints" / "tiny"


@cache
def random_target(kind):
    """Peaked logits over a small vocabulary, so that blind drafts are right now and then."""
    torch.manual_seed(11)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": False,
        "eos_token_id": [5, 7],
    }
    if kind == "dense":
        return Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=2, **sizes))
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    dims = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(num_hidden_layers=4, **heads, **dims, **sizes))


def random_stack(kind="hybrid", gdn_verify="fused", commit="replay", place=lambda module: module):
    """Target, drafter and Weaver that know nothing of each other: lossless all the same. place: where modules go."""
    target = Target(place(random_target(kind)), tap_layer_ids=[0, 1], gdn_verify=gdn_verify, commit=commit)
    torch.manual_seed(5)
    config = make_config(
        (FULL,), hidden_size=HIDDEN, num_key_value_heads=1, block_size=BLOCK, mask_token_id=1, sliding_window=None
    )
    drafter = DrafterRuntime(place(DFlashDrafter(config).requires_grad_(False)))
    weaver = Weaver(
        WeaverConfig(
            d_model=HIDDEN, d_embed=HIDDEN, d_rank=16, num_layers=1, num_heads=2, mlp_dim=16, K=BLOCK - 1,
            candidate_pool_size=12,
        )
    ).requires_grad_(False)  # fmt: skip
    torch.nn.init.normal_(weaver.lm_head_query_in.weight, std=0.2)
    runtime = WeaverRuntime(place(weaver), target.embedding, target.head.weight)
    return Stack(Path("random"), target, drafter, runtime, None, frozenset())


@cache
def shipped_stack(gdn_verify="fused", commit="replay"):
    """checkpoints/tiny in fp32, without stop ids: decoding goes on to the length limit."""
    stack = Stack.load(SHIPPED, dtype="float32", gdn_verify=gdn_verify, commit=commit)
    return dataclasses.replace(stack, stop_ids=frozenset())
