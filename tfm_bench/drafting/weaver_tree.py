"""TfM drafting: token trees grown best-first from Weaver's conditionals (arXiv 2607.06763, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kernels.weaver.candidates import best_children, ordered_topk
from kernels.weaver.compiled import CompiledWeaverTree, supports, weaver_library
from tfm_bench.drafting.best_first import Children, Node, grow_tree
from tfm_bench.drafting.stopping import cut, first_nodes
from tfm_bench.models.device import on_host
from tfm_bench.models.layers import rotary_rows
from tfm_bench.models.weaver import NodeCache, Weaver
from tfm_bench.models.weaver_control import FULL, WeaverControl
from tfm_bench.tree import TokenTree

if TYPE_CHECKING:
    from kernels.weaver.triton_tree import TritonWeaverTree

CHILDREN = 8
TABLE_ROWS = 2**15
NAN_MESSAGE = "draft logits hold NaN"


def runs_in_triton(weaver: Weaver) -> bool:
    """Whether the Triton path covers a Weaver: one layer, v1 or v2, on a CUDA device."""
    on_cuda = weaver.lm_head_query_in.weight.is_cuda and find_spec("triton") is not None
    return on_cuda and weaver.config.num_layers == 1


class WeaverRuntime:
    """A Weaver joined to its target's embedding and head, ready to draft.

    embedding_weight [V or more, d_embed], lm_head_weight [V, H]. Holds two tables [V, R], token features and the head
    projected into Weaver's space: fp32, in Triton the Weaver's dtype. `pool_size` is the number of candidates per depth
    (default: the Weaver's own), `children` the number of children of an expanded node. `implementation` tells what
    runs: "compiled" covers one-layer v1 Weavers on the CPU where a C++ compiler is at hand, "triton" one-layer Weavers
    on a CUDA device, "torch" the rest, and all of them if `compiled` is False. `control`: what the Weaver is shown.
    """

    @torch.no_grad()
    def __init__(
        self,
        weaver: Weaver,
        embedding_weight: Tensor,
        lm_head_weight: Tensor,
        pool_size: int | None = None,
        children: int = CHILDREN,
        compiled: bool = True,
        control: WeaverControl = FULL,
    ) -> None:
        if embedding_weight.shape[0] < lm_head_weight.shape[0]:
            raise ValueError(f"{embedding_weight.shape[0]} embeddings for a head of {lm_head_weight.shape[0]} tokens")
        self.weaver, self.control = weaver, control
        self.pool_size = min(pool_size or weaver.config.candidate_pool_size, lm_head_weight.shape[0])
        self.children = min(children, self.pool_size)
        dtype = weaver.lm_head_query_in.weight.dtype
        in_triton = compiled and runs_in_triton(weaver)
        kept = dtype if in_triton else torch.float32
        self.token_table = _by_rows(
            lambda rows: weaver.token_features(rows.to(dtype)).to(kept), control.embedding(embedding_weight)
        )
        self.residual_head = _by_rows(lambda rows: weaver.residual_head(rows.to(dtype)).to(kept), lm_head_weight)
        self._triton = self._in_triton() if in_triton else None
        self._compiled: CompiledWeaverTree | None = None
        if compiled and supports(weaver.state_dict()) and weaver_library() is not None:
            self._compiled = CompiledWeaverTree(
                weaver.state_dict(),
                token_table=self.token_table,
                residual_head=self.residual_head,
                heads=weaver.config.num_heads,
                pool_size=self.pool_size,
                children=self.children,
            )

    def _in_triton(self) -> TritonWeaverTree:
        from kernels.weaver.triton_tree import TritonWeaverTree  # Triton is imported only where it runs

        config, positions = self.weaver.config, torch.arange(self.weaver.config.K + 1, device=self.token_table.device)
        return TritonWeaverTree(
            self.weaver.state_dict(),
            token_table=self.token_table,
            residual_head=self.residual_head,
            heads=config.num_heads,
            pool_size=self.pool_size,
            children=self.children,
            rotary=None if config.version == 1 else rotary_rows(positions, config.head_dim, config.rotary_base),
        )

    @property
    def implementation(self) -> str:
        if self._triton is not None:
            return "triton"
        return "torch" if self._compiled is None else "compiled"

    @torch.no_grad()
    def build(
        self,
        anchor: int,
        target_hidden: Tensor,
        draft_hidden: Tensor,
        draft_logits: Tensor,
        budget: int,
        expansion_width: int,
        round_ms: Sequence[float] | None = None,
    ) -> TokenTree:
        """Tree of `budget` nodes, padded to width budget + 1, in ceil(budget / expansion_width) Weaver calls.

        target_hidden [H] at the last committed position and draft_hidden [D, H], after the final norms;
        draft_logits [D, V], raw. Depths beyond the Weaver's K are not drafted. round_ms [budget + 1]: growth ends where
        the nodes of a call no longer pay (see stopping), and the tree has no padding; in Triton, where a graph has a
        fixed size, it is grown whole and cut, so that no call is saved. Raises ValueError for NaN among the logits, a
        negative budget and a width below 1.
        """
        if budget < 0 or expansion_width < 1:
            raise ValueError(f"budget {budget} and expansion width {expansion_width}: at least 0 and 1 are needed")
        target_hidden = self.control.target_hidden(target_hidden)
        if self._triton is not None:
            tree = self._build_in_triton(anchor, target_hidden, draft_hidden, draft_logits, budget, expansion_width)
            return tree if round_ms is None else cut(tree, round_ms, expansion_width)
        if budget and math.isnan(draft_logits.max().item()):
            raise ValueError(NAN_MESSAGE)
        depths = min(draft_hidden.shape[0], self.weaver.config.K)
        draft_hidden, draft_logits = draft_hidden[:depths], draft_logits[:depths].float()
        if self._compiled is None:
            step = TorchExpansion(self, target_hidden, draft_hidden, draft_logits, budget)
            return grow_tree(
                anchor, step, budget=budget, expansion_width=expansion_width, max_depth=depths, round_ms=round_ms
            )
        tree = TokenTree(
            *self._compiled.grow(
                anchor=anchor,
                target_hidden=target_hidden.float().contiguous(),
                draft_hidden=draft_hidden.float().contiguous(),
                draft_logits=draft_logits.contiguous(),
                budget=budget,
                width=expansion_width,
                round_ms=round_ms,
            )
        )
        return tree if round_ms is None else first_nodes(tree, tree.size)

    def _build_in_triton(
        self,
        anchor: int,
        target_hidden: Tensor,
        draft_hidden: Tensor,
        draft_logits: Tensor,
        budget: int,
        expansion_width: int,
    ) -> TokenTree:
        """`build` with one wait for the device: at its end, for everything that comes back."""
        assert self._triton is not None
        depths = min(draft_hidden.shape[0], self.weaver.config.K)
        if self.token_table.is_cuda:
            self._triton.capture(depths=depths, budget=budget, width=expansion_width)
        grown = self._triton.grow(
            anchor=anchor,
            target_hidden=target_hidden,
            draft_hidden=draft_hidden[:depths],
            draft_logits=draft_logits[:depths],
            budget=budget,
            width=expansion_width,
        )
        tokens, parents, edges, size, largest = on_host(*grown, draft_logits.max())
        if budget and math.isnan(largest):
            raise ValueError(NAN_MESSAGE)
        return TokenTree(tokens.long(), parents.long(), edges.float(), int(size))


def _by_rows(work: Callable[[Tensor], Tensor], matrix: Tensor) -> Tensor:
    """work over all rows; TABLE_ROWS at a time, as fp32 copies of a whole embedding can be larger than the model."""
    return torch.cat([work(rows) for rows in matrix.split(TABLE_ROWS)])


class TorchExpansion:
    """The scorer of one tree in torch: each call is one Weaver node batch over the keys and values kept so far."""

    def __init__(
        self, runtime: WeaverRuntime, target_hidden: Tensor, draft_hidden: Tensor, draft_logits: Tensor, budget: int
    ) -> None:
        self.runtime, self.draft_logits = runtime, draft_logits
        dtype = runtime.weaver.lm_head_query_in.weight.dtype
        prefix = runtime.weaver.prefix(target_hidden[None].to(dtype), draft_hidden[None].to(dtype))
        layers, _, rows, heads, dim = prefix[0].shape
        keys, values = (x.new_empty(layers, rows + budget + 1, heads, dim) for x in prefix)
        keys[:, :rows], values[:, :rows] = prefix[0][:, 0], prefix[1][:, 0]
        self.cache = NodeCache(keys, values, filled=rows)
        self.seen = np.zeros((budget + 1, rows + budget + 1), dtype=bool)
        self.seen[:, :rows] = True
        depths, size, rank = draft_logits.shape[0], runtime.pool_size, runtime.residual_head.shape[1]
        self.pool_ids = draft_logits.new_empty(depths, size, dtype=torch.int64)
        self.pool_logits = draft_logits.new_empty(depths, size)
        self.pool_heads = draft_logits.new_empty(depths, size, rank)
        self.pooled: set[int] = set()

    def __call__(self, nodes: list[Node]) -> Children:
        """Tokens and log-probabilities of the children of each node, best first."""
        runtime, device = self.runtime, self.draft_logits.device
        self._fill_pools({node.depth for node in nodes} - self.pooled)
        tokens, depths = torch.tensor([[node.token, node.depth] for node in nodes], device=device).T
        features = runtime.token_table.index_select(0, tokens).to(self.cache.keys.dtype)
        queries = runtime.weaver.node_step(features, depths, self.cache, self._mask(nodes)).float()
        # One matrix-vector product per node: a batched one takes six times as long on a CPU.
        rows = [(self.pool_logits[node.depth], self.pool_heads[node.depth]) for node in nodes]
        scores = torch.stack([torch.addmv(logits, head, q) for (logits, head), q in zip(rows, queries, strict=True)])
        indices, logprobs = best_children(scores, runtime.children)
        return self.pool_ids.index_select(0, depths).gather(-1, indices).tolist(), logprobs.tolist()

    def _fill_pools(self, depths: set[int]) -> None:
        """Candidates of each depth that is reached for the first time, and their rows of the residual head."""
        for depth in depths:
            ids = ordered_topk(self.draft_logits[depth], self.runtime.pool_size)
            self.pool_ids[depth] = ids
            self.pool_logits[depth] = self.draft_logits[depth, ids]
            self.pool_heads[depth] = self.runtime.residual_head.index_select(0, ids)
        self.pooled |= depths

    def _mask(self, nodes: list[Node]) -> Tensor:
        """[N, filled + N] bool: prefix, ancestors and self, by cache row."""
        first, slots = self.cache.filled, [node.slot for node in nodes]
        for row, node in enumerate(nodes, start=first):
            if node.parent >= 0:
                self.seen[node.slot] = self.seen[node.parent]
            self.seen[node.slot, row] = True
        return torch.from_numpy(self.seen[slots, : first + len(nodes)]).to(self.draft_logits.device)
