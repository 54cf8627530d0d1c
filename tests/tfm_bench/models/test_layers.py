"""Fused projections, norms, rotation and attention against the library's plain forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

from tfm_bench.models.layers import InferenceNorm, apply_rotary, apply_rotary_, grouped_attention, rotary_rows
from tfm_bench.models.linear import FusedLinear


def make_linears(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Linear(24, rows, bias=False, dtype=dtype).requires_grad_(False) for rows in (16, 5, 40)]


@pytest.mark.parametrize("rows", [1, 2, 17, 65])
@pytest.mark.parametrize("onednn", [True, False])
def test_fused_linear_equals_its_parts(rows, onednn, monkeypatch):
    if not onednn:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    modules = make_linears()
    weights = [module.weight.clone() for module in modules]
    fused, x, residual = FusedLinear(modules), torch.randn(rows, 24), torch.randn(rows, 61)
    assert (fused.packed is not None) == onednn
    expected = torch.cat([linear(x, weight) for weight in weights], dim=-1)
    torch.testing.assert_close(fused(x), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused.add(x, residual), residual + expected, rtol=1e-5, atol=1e-6)
    assert fused.sizes == [16, 5, 40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 3])
def test_modules_become_views(dtype, count):
    modules = make_linears(dtype)[:count]
    weights = [module.weight.clone() for module in modules]
    fused = FusedLinear(modules)
    for module, weight in zip(modules, weights, strict=True):
        assert torch.equal(module.weight, weight)
        assert module.weight.untyped_storage().data_ptr() == fused.weight.untyped_storage().data_ptr()


def test_tied_weight_stays_in_place():
    modules = make_linears()[:1]
    address = modules[0].weight.data_ptr()
    FusedLinear(modules, share_storage=False)
    assert modules[0].weight.data_ptr() == address


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_matches_library(scale, dtype):
    """Small inputs show eps, large ones overflow."""
    torch.manual_seed(0)
    x, weight = (torch.randn(7, 3, 32) * scale).to(dtype), torch.randn(32).to(dtype)
    expected = rms_norm(x.double(), (32,), weight.double(), eps=1e-6)
    actual = InferenceNorm(weight, 1e-6, dtype)(x)
    assert actual.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 5e-3
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("turned", [8, 32])
def test_rotation_is_one_of_angles(turned):
    """Pairs (i, i + turned / 2) turn by position * theta^(-2 i / turned); the rest of the head passes."""
    torch.manual_seed(0)
    x, positions = torch.randn(5, 2, 32), torch.tensor([0, 1, 7, 100, 4000])
    cos, sin = (rows[:, None] for rows in rotary_rows(positions, turned, 1e4))
    half = turned // 2
    angle = positions[:, None, None] * 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(x[..., :half].double(), x[..., half:turned].double()) * torch.exp(1j * angle)
    expected = torch.cat([pairs.real, pairs.imag, x[..., turned:]], dim=-1)
    torch.testing.assert_close(apply_rotary_(x.clone(), cos, sin).double(), expected, rtol=1e-3, atol=1e-3)
    if turned == 32:
        torch.testing.assert_close(apply_rotary(x, cos, sin), apply_rotary_(x.clone(), cos, sin))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [0, 3, 9])
def test_attention_matches_library(kv_heads, masked):
    torch.manual_seed(0)
    query = torch.randn(5, 4, 16)
    keys, values = torch.randn(2, kv_heads, 9, 16)
    visible = torch.rand(5, 9) < 0.6
    visible[:, masked:] = True
    visible[:, 0] = True
    mask = torch.zeros(5, 1, 9).masked_fill(~visible[:, None], float("-inf"))[..., :masked] if masked else None
    actual = grouped_attention(query / 4.0, keys, values, mask)
    repeated = [x.repeat_interleave(4 // kv_heads, 0) for x in (keys, values)]
    expected = scaled_dot_product_attention(query.transpose(0, 1), *repeated, attn_mask=visible)
    torch.testing.assert_close(actual, expected.transpose(0, 1).flatten(1), rtol=1e-5, atol=1e-6)
