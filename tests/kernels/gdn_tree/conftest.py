"""Trees, inputs and the fp64 oracle that the tests of this folder share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import naive_tree_gated_delta_rule
from kernels.gdn_tree.structure import TreeStructure

PARENT_OF: dict[str, Callable[[int], int]] = {
    "anchor_only": lambda node: 0,
    "chain": lambda node: node - 1,
    "star": lambda node: 0,
    "caterpillar": lambda node: max(node - 2 + node % 2, 0) if node % 2 else node - 2,
    "random": lambda node: random.Random(node).randrange(node),
    "wide": lambda node: (node - 1) // 4,
    "mixed": lambda node: max(node - 4, 0),
}


@dataclass(frozen=True)
class Case:
    """One tree with inputs for every method, and what the definition gives for them in fp64."""

    structure: TreeStructure
    inputs: dict[str, Tensor]
    outputs: Tensor
    states: Tensor
    pseudo_values: Tensor

    def to(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of a VERIFY function."""
        return {**{name: x.to(dtype) for name, x in self.inputs.items()}, "structure": self.structure}


def build_case(
    parents: list[int], *, batch: int = 1, key_dim: int = 16, value_dim: int = 16, g: Tensor | None = None
) -> Case:
    """Two key heads, six value heads, fp32 values held in fp64 so that both precisions see the same numbers."""
    generator = torch.Generator().manual_seed(len(parents))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    nodes = len(parents)
    inputs = {
        "q": normalize(draw(batch, nodes, 2, key_dim), dim=-1),
        "k": normalize(draw(batch, nodes, 2, key_dim), dim=-1),
        "v": draw(batch, nodes, 6, value_dim),
        "g": -softplus(draw(batch, nodes, 6) - 1) if g is None else g,
        "beta": draw(batch, nodes, 6).sigmoid(),
        "initial_state": draw(batch, 6, key_dim, value_dim),
    }
    inputs = {name: x.double() for name, x in inputs.items()}
    structure = TreeStructure.from_parents(torch.tensor(parents))
    outputs, states = naive_tree_gated_delta_rule(**inputs, parents=structure.parents)
    return Case(structure, inputs, outputs, states, _pseudo_values(inputs, structure.parents, states))


def _pseudo_values(inputs: dict[str, Tensor], parents: Tensor, states: Tensor) -> Tensor:
    """u_i from S_i - e^g S_p = k_i u_i^T."""
    keys = inputs["k"].repeat_interleave(3, 2)
    before = torch.cat([states, inputs["initial_state"].unsqueeze(1)], 1)[:, parents]
    gain = states - inputs["g"].exp()[..., None, None] * before
    return torch.einsum("bnhkv,bnhk->bnhv", gain, keys / keys.square().sum(-1, keepdim=True))


@cache
def _named_case(shape: str, nodes: int, batch: int, value_dim: int) -> Case:
    return build_case(parents_of(shape, nodes), batch=batch, value_dim=value_dim)


def parents_of(shape: str, nodes: int) -> list[int]:
    return [-1, *(PARENT_OF[shape](node) for node in range(1, nodes))]


def _relative_rms(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.fixture(scope="session")
def make_parents() -> Callable[[str, int], list[int]]:
    return parents_of


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    """Case from a list of parents."""
    return build_case


@pytest.fixture(scope="session")
def named_case() -> Callable[..., Case]:
    """Case from the name of a shape and a number of nodes, computed once per session."""

    def case(shape: str, nodes: int, batch: int = 1, value_dim: int = 16) -> Case:
        return _named_case(shape, nodes, batch, value_dim)

    return case


@pytest.fixture(scope="session")
def relative_rms() -> Callable[[Tensor, Tensor], float]:
    return _relative_rms
