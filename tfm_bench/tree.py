"""Token trees: the one data structure that drafting builds, the target verifies and acceptance walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels.gdn_tree.structure import TreeStructure, chain_structure


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A draft tree in topological order; node 0 is the anchor.

    tokens [N] int64; parents [N] int64 with parents[0] == -1 and parents[i] < i; edge_logprobs [N] fp32, the drafting
    model's conditional log-probability of each edge (0 for the anchor). Rows from `size` on are padding: they hang
    under the anchor so that the shapes stay static, and acceptance never looks at them. All tensors live on the CPU,
    where trees are built; `structure` moves what the target needs.
    """

    tokens: Tensor
    parents: Tensor
    edge_logprobs: Tensor
    size: int

    @classmethod
    def from_lists(
        cls, tokens: Sequence[int], parents: Sequence[int], edge_logprobs: Sequence[float], width: int
    ) -> TokenTree:
        """Tree of len(tokens) nodes, padded to `width` rows. Raises ValueError if the order is not topological."""
        size = len(tokens)
        if not (len(parents) == len(edge_logprobs) == size and 1 <= size <= width):
            raise ValueError(f"a tree needs 1 to {width} nodes with one parent and log-probability each, got {size}")
        if parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
            raise ValueError("node 0 is the anchor with parent -1; every other parent comes before its child")
        pad = width - size
        return cls(
            tokens=torch.tensor([*tokens, *[0] * pad]),
            parents=torch.tensor([*parents, *[0] * pad]),
            edge_logprobs=torch.tensor([*edge_logprobs, *[float("-inf")] * pad], dtype=torch.float32),
            size=size,
        )

    @classmethod
    def chain(cls, tokens: Sequence[int], edge_logprobs: Sequence[float]) -> TokenTree:
        """Tree without branches, unpadded. Raises ValueError for no tokens or another number of log-probabilities."""
        tree = cls.from_lists(tokens, range(-1, len(tokens) - 1), edge_logprobs, len(tokens))
        # Chains and plain decoding must not pay every round for a structure that never changes.
        tree.__dict__["structure"] = chain_structure(tree.width)
        return tree

    @property
    def width(self) -> int:
        """Verify width N: rows that the target computes, anchor and padding included."""
        return self.tokens.shape[0]

    @cached_property
    def structure(self) -> TreeStructure:
        """What the kernels need, derived once per round and shared by all layers."""
        return TreeStructure.from_parents(self.parents)

    @property
    def depths(self) -> Tensor:
        """[N] int64; the anchor has depth 0."""
        return self.structure.depths

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """Per node: token of a child -> index of that child. Siblings carry distinct tokens."""
        children: list[dict[int, int]] = [{} for _ in range(self.size)]
        parents, tokens = self.parents.tolist(), self.tokens.tolist()
        for node in range(1, self.size):
            children[parents[node]][tokens[node]] = node
        return children

    def positions(self, start: int) -> Tensor:
        """Absolute positions [N] when the anchor stands at `start`: by depth, never by index."""
        return self.depths + start
