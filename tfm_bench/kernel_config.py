"""The section `kernels` of the configuration: which kernels are measured, on which problems. Imports nothing heavy."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tfm_bench.config_types import Count, Slug, Strict

Shapes = Literal["27b", "qwen35-4b", "tiny"]
TreeKind = Literal["chain", "star", "ddtree", "weaver"]
RecordedKind = Literal["ddtree", "weaver"]
RECORDED_KINDS: tuple[RecordedKind, ...] = ("ddtree", "weaver")
ImplementationName = Literal["torch", "compiled", "triton", "sglang", "fla"]

Nodes = Annotated[int, Field(ge=2, le=512)]


class KernelCase(NamedTuple):
    """One problem: the shapes of a layer, a tree, its number of nodes (anchor too), how many sequences share it."""

    shapes: Shapes
    tree: TreeKind
    nodes: int
    batch: int


class KernelGrid(Strict):
    """The full product of its four lists."""

    shapes: list[Shapes] = Field(min_length=1)
    trees: list[TreeKind] = Field(min_length=1)
    nodes: list[Nodes] = Field(min_length=1)
    batches: list[Count] = Field(min_length=1)

    def cases(self) -> list[KernelCase]:
        """All problems of this grid."""
        return [KernelCase(*case) for case in itertools.product(self.shapes, self.trees, self.nodes, self.batches)]


class RecordedTreesConfig(Strict):
    """From which rounds trees are taken: dev prompts per dataset, and new tokens per prompt."""

    datasets: list[Slug] = Field(min_length=1)
    prompts: Count
    max_new_tokens: Annotated[int, Field(ge=2)]


class KernelsConfig(Strict):
    """One run of the kernel benchmark; config/default.yaml explains the keys."""

    implementations: list[ImplementationName] = Field(min_length=1)
    dtype: Literal["float32", "bfloat16"]
    grids: list[KernelGrid] = Field(min_length=1)
    recorded: RecordedTreesConfig
    path: Count
    cold_megabytes: Count
    memory_megabytes: Count
    least_runs: Count
    most_runs: Count
    arm_seconds: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.most_runs < self.least_runs:
            raise ValueError(f"most_runs: found {self.most_runs}; least_runs ({self.least_runs}) or more is accepted")
        return self

    def cases(self) -> list[KernelCase]:
        """The problems of all grids, each once, in the order of their first mention."""
        return list(dict.fromkeys(case for grid in self.grids for case in grid.cases()))

    def recorded_nodes(self) -> list[int]:
        """Sizes in which recorded trees are needed, smallest first."""
        return sorted({case.nodes for case in self.cases() if case.tree in RECORDED_KINDS})
