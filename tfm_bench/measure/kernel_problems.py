"""Problems of the kernel benchmark: shapes of real layers, trees, seeded inputs, and their fp64 solution."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from kernels.gdn_tree import TreeStructure, naive_tree_gated_delta_rule
from tfm_bench.kernel_config import RECORDED_KINDS, KernelCase, Shapes
from tfm_bench.measure.recorded_trees import RecordedTree, median_tree

STATE_BYTES = 4  # recurrent states are fp32 whatever the inputs are


class LayerShapes(NamedTuple):
    """Heads and widths of a Gated-DeltaNet layer, and how many such layers its model has."""

    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    layers: int

    @property
    def state_bytes(self) -> int:
        """Bytes of one layer's recurrent state, one sequence."""
        return self.value_heads * self.key_dim * self.value_dim * STATE_BYTES


# Sources: config.json of Qwen/Qwen3.6-27B, Qwen/Qwen3.5-4B and checkpoints/tiny/target.
SHAPES: dict[Shapes, LayerShapes] = {
    "27b": LayerShapes(heads=16, value_heads=48, key_dim=128, value_dim=128, layers=48),
    "qwen35-4b": LayerShapes(heads=16, value_heads=32, key_dim=128, value_dim=128, layers=24),
    "tiny": LayerShapes(heads=3, value_heads=6, key_dim=32, value_dim=32, layers=9),
}


class Problem(NamedTuple):
    """Inputs q, k, v, g, beta of one layer, its committed state [B, HV, K, V], a tree and the path to commit [A]."""

    inputs: dict[str, Tensor]
    state: Tensor
    structure: TreeStructure
    path: Tensor

    def commit_inputs(self, *names: str) -> dict[str, Tensor]:
        """Of the inputs, those that a commit reads."""
        return {name: self.inputs[name] for name in names}


class Expected(NamedTuple):
    """fp64: outputs [B, N, HV, V], and the state [B, HV, K, V] once the path is committed."""

    outputs: Tensor
    committed: Tensor


def tree_parents(case: KernelCase, recorded: list[RecordedTree]) -> list[int]:
    """Parents of the tree of a case; recorded kinds take the tree of median depth sum of that size."""
    if case.tree == "chain":
        return [node - 1 for node in range(case.nodes)]
    if case.tree == "star":
        return [-1, *[0] * (case.nodes - 1)]
    assert case.tree in RECORDED_KINDS
    return median_tree(recorded, case.tree, case.nodes).parents


def make_problem(
    case: KernelCase, parents: list[int], longest_path: int, dtype: torch.dtype, device: torch.device
) -> Problem:
    """Seeded inputs; q, k, v in `dtype`, the rest fp32. The path leads towards the deepest node, anchor included."""
    shapes, generator = SHAPES[case.shapes], torch.Generator().manual_seed(case.nodes)

    def draw(*size: int) -> Tensor:
        return torch.randn(case.batch, *size, generator=generator)

    inputs = {
        "q": normalize(draw(case.nodes, shapes.heads, shapes.key_dim), dim=-1).to(dtype),
        "k": normalize(draw(case.nodes, shapes.heads, shapes.key_dim), dim=-1).to(dtype),
        "v": draw(case.nodes, shapes.value_heads, shapes.value_dim).to(dtype),
        "g": -softplus(draw(case.nodes, shapes.value_heads) - 2),
        "beta": draw(case.nodes, shapes.value_heads).sigmoid(),
    }
    state = draw(shapes.value_heads, shapes.key_dim, shapes.value_dim)
    structure = TreeStructure.from_parents(torch.tensor(parents, device=device))
    path = committed_path(structure, longest_path)
    moved = {name: x.to(device) for name, x in inputs.items()}
    return Problem(moved, state.to(device), structure, torch.tensor(path, device=device))


def committed_path(structure: TreeStructure, longest: int) -> list[int]:
    """Nodes from the anchor towards the deepest node, at most `longest` of them."""
    return structure.path_to(int(structure.depths.argmax()))[:longest]


def expected_of(problem: Problem) -> Expected:
    """The definition in fp64, one sequence and key head at a time: all node states at once would fill the memory."""
    heads = problem.inputs["k"].shape[2]
    group = problem.inputs["v"].shape[2] // heads
    outputs = torch.empty_like(problem.inputs["v"], dtype=torch.float64)
    committed = torch.empty_like(problem.state, dtype=torch.float64)
    for sequence in range(len(problem.state)):
        for head in range(heads):
            rows = (slice(sequence, sequence + 1), slice(head * group, (head + 1) * group))
            arguments = _one_head(problem, sequence, head, rows[1])
            one, states = naive_tree_gated_delta_rule(**arguments, parents=problem.structure.parents)
            outputs[rows[0], :, rows[1]] = one
            committed[rows] = states[:, int(problem.path[-1])]
    return Expected(outputs, committed)


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over RMS of `expected`; NaN where `actual` holds one."""
    return float((actual.double() - expected).norm() / expected.norm())


def _one_head(problem: Problem, sequence: int, head: int, values: slice) -> dict[str, Any]:
    picked = {"q": slice(head, head + 1), "k": slice(head, head + 1), "v": values, "g": values, "beta": values}
    cut = {name: problem.inputs[name][sequence : sequence + 1, :, rows].double() for name, rows in picked.items()}
    return {**cut, "initial_state": problem.state[sequence : sequence + 1, values].double()}
