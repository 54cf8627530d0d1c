"""What follows from the parents of a tree alone: derived once per round, shared by all layers and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

CONV_WIDTH = 4


@dataclass(frozen=True, eq=False)
class TreeStructure:
    """parents, depths [N] int64; ancestors [N, N] bool, row i marks i itself and every ancestor of i."""

    parents: Tensor
    depths: Tensor
    ancestors: Tensor

    @classmethod
    def from_parents(cls, parents: Tensor) -> TreeStructure:
        """parents [N] int64 in topological order, parents[0] == -1."""
        nodes = parents.shape[0]
        ancestors = np.eye(nodes, dtype=bool)
        depths = np.zeros(nodes, dtype=np.int64)
        for node, parent in enumerate(parents.tolist()):
            if parent >= 0:
                ancestors[node] |= ancestors[parent]
                depths[node] = depths[parent] + 1
        device = parents.device
        return cls(parents, torch.from_numpy(depths).to(device), torch.from_numpy(ancestors).to(device))

    @cached_property
    def parent_list(self) -> list[int]:
        """parents on the host: read once, as on a GPU each time would be a wait."""
        return self.parents.tolist()

    @cached_property
    def levels(self) -> list[Tensor]:
        """Node indices of each depth, shallowest first."""
        return [torch.nonzero(self.depths == depth).flatten() for depth in range(int(self.depths.max()) + 1)]

    @cached_property
    def leaves(self) -> list[int]:
        """Nodes without children."""
        inner = set(self.parent_list)
        return [node for node in range(self.parents.shape[0]) if node not in inner]

    @cached_property
    def conv_taps(self) -> Tensor:
        """[N, CONV_WIDTH] rows of [committed window of CONV_WIDTH - 1 inputs, oldest first | N node inputs].

        Row i lists great-grandparent, grandparent, parent and i; above the anchor it falls into the window.
        """
        history = CONV_WIDTH - 1
        rows: list[list[int]] = []
        for node, parent in enumerate(self.parent_list):
            before = rows[parent] if parent >= 0 else list(range(-1, history))
            rows.append([*before[1:], history + node])
        return torch.tensor(rows, device=self.parents.device)

    def path_to(self, node: int) -> list[int]:
        """Indices from the anchor to `node`, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]


@lru_cache(maxsize=256)
def chain_structure(nodes: int) -> TreeStructure:
    """The tree without branches; one object per length, so that what kernels derive from it is derived once."""
    return TreeStructure.from_parents(torch.arange(-1, nodes - 1))
