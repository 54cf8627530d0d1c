"""Names and shapes of published tensors, at any size.

Spelled out from the published tensor lists, and not taken from the code that reads them.
"""

from __future__ import annotations

VOCAB, HIDDEN, MLP = 96, 64, 80
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
KEY_HEADS, VALUE_HEADS, GDN_DIM = 2, 6, 16
VISION, VISION_MLP, PATCH = 32, 48, 4


def mlp_shapes(hidden=HIDDEN, mlp=MLP):
    return {
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }


def attention_shapes(*, gated=False, heads=HEADS, kv_heads=KV_HEADS, dim=HEAD_DIM, hidden=HIDDEN):
    return {
        "self_attn.q_proj.weight": (heads * dim * (2 if gated else 1), hidden),
        "self_attn.k_proj.weight": (kv_heads * dim, hidden),
        "self_attn.v_proj.weight": (kv_heads * dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * dim),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }


def gdn_shapes():
    keys, values = KEY_HEADS * GDN_DIM, VALUE_HEADS * GDN_DIM
    return {
        "linear_attn.A_log": (VALUE_HEADS,),
        "linear_attn.dt_bias": (VALUE_HEADS,),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, 4),
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, HIDDEN),
        "linear_attn.in_proj_z.weight": (values, HIDDEN),
        "linear_attn.in_proj_a.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.in_proj_b.weight": (VALUE_HEADS, HIDDEN),
        "linear_attn.norm.weight": (GDN_DIM,),
        "linear_attn.out_proj.weight": (HIDDEN, values),
    }


def vision_shapes():
    merged = 4 * VISION
    block = {
        "attn.qkv.weight": (3 * VISION, VISION),
        "attn.qkv.bias": (3 * VISION,),
        "attn.proj.weight": (VISION, VISION),
        "attn.proj.bias": (VISION,),
        "mlp.linear_fc1.weight": (VISION_MLP, VISION),
        "mlp.linear_fc1.bias": (VISION_MLP,),
        "mlp.linear_fc2.weight": (VISION, VISION_MLP),
        "mlp.linear_fc2.bias": (VISION,),
        **{f"norm{i}.{kind}": (VISION,) for i in (1, 2) for kind in ("weight", "bias")},
    }
    return {
        "patch_embed.proj.weight": (VISION, 3, 2, PATCH, PATCH),
        "patch_embed.proj.bias": (VISION,),
        "pos_embed.weight": (16, VISION),
        **{f"blocks.0.{name}": shape for name, shape in block.items()},
        "merger.norm.weight": (VISION,),
        "merger.norm.bias": (VISION,),
        "merger.linear_fc1.weight": (merged, merged),
        "merger.linear_fc1.bias": (merged,),
        "merger.linear_fc2.weight": (HIDDEN, merged),
        "merger.linear_fc2.bias": (HIDDEN,),
    }


def multimodal_shapes(*, tied):
    """Qwen3.5-4B (tied) and Qwen3.6-27B: language model one level down, vision tower, one MTP layer."""
    text = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    for i in range(4):
        mixer = gdn_shapes() if i < 3 else attention_shapes(gated=True)
        text |= {f"layers.{i}.{name}": shape for name, shape in {**mixer, **mlp_shapes()}.items()}
    mtp = {"fc.weight": (HIDDEN, 2 * HIDDEN)}
    mtp |= {f"{name}.weight": (HIDDEN,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    mtp |= {f"layers.0.{name}": shape for name, shape in {**attention_shapes(gated=True), **mlp_shapes()}.items()}
    return {
        **({} if tied else {"lm_head.weight": (VOCAB, HIDDEN)}),
        **{f"model.language_model.{name}": shape for name, shape in text.items()},
        **{f"model.visual.{name}": shape for name, shape in vision_shapes().items()},
        **{f"mtp.{name}": shape for name, shape in mtp.items()},
    }


def dense_shapes(*, tied):
    """Qwen3-4B (tied) and Qwen3-8B."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(3):
        shapes |= {f"model.layers.{i}.{name}": s for name, s in {**attention_shapes(), **mlp_shapes()}.items()}
    return shapes if tied else {"lm_head.weight": (VOCAB, HIDDEN), **shapes}


def drafter_shapes(*, hidden=HIDDEN, mlp=MLP, heads=HEADS, kv_heads=KV_HEADS, dim=HEAD_DIM, taps=3, layers=5):
    shapes = {"fc.weight": (hidden, taps * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    layer = attention_shapes(heads=heads, kv_heads=kv_heads, dim=dim, hidden=hidden) | mlp_shapes(hidden, mlp)
    return shapes | {f"layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}


def weaver_shapes(version=1, *, width=HIDDEN, rank=32, mlp=24, depths=15, fused=False):
    """Tensors of a published Weaver of one block; fused: v1 with one attention projection."""
    block = {
        "norm_attn.weight": (rank,),
        "norm_attn.bias": (rank,),
        "norm_mlp.weight": (rank,),
        "norm_mlp.bias": (rank,),
        "o_proj.weight": (rank, rank),
    }
    if fused or version == 2:
        block["qkv_proj.weight"] = (3 * rank, rank)
    else:
        block |= {f"{name}_proj.weight": (rank, rank) for name in "qkv"}
    up, down = ("fc1", "fc2") if version == 1 else ("gate_up_proj", "down_proj")
    rows = mlp * version  # v2 keeps gate and up in one tensor
    block |= {
        f"{up}.weight": (rows, rank),
        f"{up}.bias": (rows,),
        f"{down}.weight": (rank, mlp),
        f"{down}.bias": (rank,),
    }
    norms = {"output_norm": width, "embed_norm": width, "out_norm": rank}
    return {
        **{f"{name}.{kind}": (size,) for name, size in norms.items() for kind in ("weight", "bias")},
        **{f"{name}.weight": (rank, width) for name in ("token_in", "proposal_in")},
        **{f"{name}.bias": (rank,) for name in ("token_in", "proposal_in")},
        **{f"blocks.0.{name}": shape for name, shape in block.items()},
        "lm_head_query_in.weight": (width, rank),
        **({"pos_emb": (depths, rank)} if version == 1 else {}),
    }
