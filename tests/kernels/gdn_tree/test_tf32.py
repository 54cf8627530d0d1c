"""Tensor cores round factors to tf32, the interpreter does not. Emulated, it must cost less than bf16 inputs do."""

import numpy as np
import pytest
import torch

from kernels.gdn_tree import TORCH, TreeStructure

triton_fused = pytest.importorskip("kernels.gdn_tree.triton_fused")
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from kernels.gdn_tree.triton_structure import device_tree  # noqa: E402

NODES, KEY, VALUE = 64, 128, 32


def rounded(handle):
    """To tf32's ten bits of mantissa."""
    if handle.data.dtype != np.float32:
        return handle
    bits = (handle.data.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)
    return TensorHandle(bits.view(np.float32), handle.dtype)


@pytest.fixture
def tensor_cores(monkeypatch):
    """Products of rounded factors; the list counts them."""
    exact, calls = InterpreterBuilder.create_dot, []

    def create_dot(self, left, right, *rest):
        calls.append(1)
        return exact(self, rounded(left), rounded(right), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    return calls


def alike(cosine, least_beta):
    """Inputs of a chain whose keys have this cosine among each other: the worse, the more the solve has to cancel."""
    generator = torch.Generator().manual_seed(0)

    def unit(*size):
        return torch.nn.functional.normalize(torch.randn(*size, generator=generator), dim=-1)

    k = unit(1, 1, 1, KEY) * cosine**0.5 + unit(1, NODES, 1, KEY) * (1 - cosine) ** 0.5
    return {
        "q": unit(1, NODES, 1, KEY),
        "k": torch.nn.functional.normalize(k, dim=-1),
        "v": torch.randn(1, NODES, 1, VALUE, generator=generator),
        "g": -0.05 * torch.rand(1, NODES, 1, generator=generator),
        "beta": least_beta + (1 - least_beta) * torch.rand(1, NODES, 1, generator=generator),
        "initial_state": 0.1 * torch.randn(1, 1, KEY, VALUE, generator=generator),
    }


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("cosine", "least_beta"), [(0.0, 0.0), (0.99, 0.95)])
def test_tf32_costs_less_than_bf16_inputs(tensor_cores, cosine, least_beta):
    inputs, structure = alike(cosine, least_beta), TreeStructure.from_parents(torch.arange(-1, NODES - 1))

    def exact(given):
        doubles = {name: value.double() for name, value in given.items()}
        return TORCH.verify["node_recurrent"](**doubles, structure=structure)

    expected = exact(inputs)
    rounding = {name: value.bfloat16().float() if name in "qkv" else value for name, value in inputs.items()}
    found = triton_fused.fused_tree_gated_delta_rule(**inputs, structure=device_tree(structure.parents))
    assert tensor_cores
    for ours, right, from_bf16 in zip(found[:2], expected[:2], exact(rounding)[:2], strict=True):
        assert 1e-5 < error(ours, right) < error(from_bf16, right)
