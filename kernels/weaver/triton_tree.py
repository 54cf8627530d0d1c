"""A whole Weaver tree on the device: static shapes and no host synchronisation, so that one CUDA graph can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.aot import Specialisation
from kernels.weaver.candidates import ordered_topk
from kernels.weaver.triton_attention import node_attention
from kernels.weaver.triton_children import Pool, publish_children
from kernels.weaver.triton_frontier import TreeState, plant, select_frontier
from kernels.weaver.triton_norm import add_norm, node_inputs

BLOCK = "blocks.0."


@dataclass
class Plan:
    """Static buffers of one shape: inputs, keys and values, the tree; and the recorded graph, once there is one."""

    anchor: Tensor  # [1] int64
    hidden: Tensor  # [P, H]: target, then drafter
    draft_logits: Tensor  # [D, V] fp32
    cache: Tensor  # [P + N, 2R]: keys, values; prefix rows, then slots
    tree: TreeState
    calls: int
    graph: torch.cuda.CUDAGraph | None = None


class TritonWeaverTree:
    """Tree builder over the weights of a one-layer Weaver, v1 or v2, in their dtype and on their device.

    state: published names; token_table [V or more, R] and residual_head [V, R] of the weights' dtype; rotary, for v2
    alone: cos and signed sin [K + 1, R / heads] fp32 by position.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        *,
        token_table: Tensor,
        residual_head: Tensor,
        heads: int,
        pool_size: int,
        children: int,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self._state = {name.removeprefix(BLOCK): value.detach() for name, value in state.items()}
        self._token_table, self._residual_head = token_table.detach().contiguous(), residual_head.detach().contiguous()
        self._heads, self._pool_size, self._children, self._rotary = heads, pool_size, children, rotary
        if rotary is None:
            self._qkv = torch.cat([self._state[f"{part}_proj.weight"] for part in "qkv"])
            self._mlp = ("fc1", "fc2")
            # The prefix row of the target takes no position; the others, and the nodes, go by depth.
            self._positions = F.pad(self._state["pos_emb"], (0, 0, 1, 0))
        else:
            self._qkv = self._state["qkv_proj.weight"]
            self._mlp = ("gate_up_proj", "down_proj")
        self._max_depths = (self._positions if rotary is None else rotary[0]).shape[0] - 1
        self._plans: dict[tuple[int, int, int], Plan] = {}
        self._pool: Any = None  # one for the graphs of all shapes: results lie outside, and they run one at a time

    def capture(self, *, depths: int, budget: int, width: int) -> None:
        """Record the growth of trees of this shape in one CUDA graph, which `grow` replays from then on.

        Raises RuntimeError where the weights are not on a CUDA device.
        """
        if not self._qkv.is_cuda:
            raise RuntimeError(f"a CUDA graph needs weights on a CUDA device; these are on {self._qkv.device}")
        plan = self._plan(depths, budget, width)
        if plan.graph is not None:
            return
        # Run once aside, so that compilation and library set-up are not part of the recording.
        stream = torch.cuda.Stream(self._qkv.device)
        stream.wait_stream(torch.cuda.current_stream(self._qkv.device))
        with torch.cuda.stream(stream):
            self._run(plan)
        torch.cuda.current_stream(self._qkv.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._run(plan)
        plan.graph = graph

    def grow(
        self,
        *,
        anchor: int | Tensor,
        target_hidden: Tensor,
        draft_hidden: Tensor,
        draft_logits: Tensor,
        budget: int,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """tokens, parents [budget + 1] int64, edge log-probabilities [budget + 1] fp32, number of nodes [1] int32.

        anchor: a token id, an int or a tensor of one element; target_hidden [H], draft_hidden [D, H],
        draft_logits [D, V], of any dtype, D at most K; budget >= 0, width >= 1. Rows beyond the number of nodes are
        padding under the anchor. The results are buffers that the next call of the same D, budget and width
        overwrites. Nothing here waits for the device, so an anchor in a tensor is not checked.
        """
        self._check(anchor, target_hidden, draft_hidden, draft_logits)
        plan = self._plan(draft_hidden.shape[0], budget, width)
        if isinstance(anchor, Tensor):
            plan.anchor.copy_(anchor.reshape(1))
        else:
            plan.anchor.fill_(anchor)
        plan.hidden[0].copy_(target_hidden)
        plan.hidden[1:].copy_(draft_hidden)
        plan.draft_logits.copy_(draft_logits)
        if plan.graph is None:
            self._run(plan)
        else:
            plan.graph.replay()
        return plan.tree.tokens, plan.tree.parents, plan.tree.edges, plan.tree.size

    def _check(self, anchor: int | Tensor, target_hidden: Tensor, draft_hidden: Tensor, draft_logits: Tensor) -> None:
        tokens, vocab = self._token_table.shape[0], self._residual_head.shape[0]
        depths, hidden = draft_hidden.shape[0], self._state["output_norm.weight"].shape[0]
        known = isinstance(anchor, Tensor) or 0 <= anchor < tokens
        if not known or not 1 <= depths <= self._max_depths:
            raise ValueError(f"anchor {anchor} of {tokens} tokens, {depths} depths of 1 to {self._max_depths}")
        shapes = ((hidden,), (depths, hidden), (depths, vocab))
        for tensor, shape in zip((target_hidden, draft_hidden, draft_logits), shapes, strict=True):
            if tensor.shape != shape:
                raise ValueError(f"expected shape {shape}, got {tuple(tensor.shape)}")

    def _plan(self, depths: int, budget: int, width: int) -> Plan:
        """The buffers of a shape, allocated at its first use."""
        if budget < 0 or width < 1:
            raise ValueError(f"budget {budget} and width {width}: at least 0 and 1 are needed")
        key = (depths, budget, width)
        if key not in self._plans:
            self._plans[key] = self._allocate(*key)
        return self._plans[key]

    def _allocate(self, depths: int, budget: int, width: int) -> Plan:
        device, prefix = self._qkv.device, depths + 1
        rank, hidden = self._state["proposal_in.weight"].shape
        width = max(1, min(width, budget))
        return Plan(
            anchor=torch.zeros(1, dtype=torch.int64, device=device),
            hidden=self._qkv.new_zeros(prefix, hidden),
            draft_logits=torch.zeros(depths, self._residual_head.shape[0], device=device),
            cache=torch.empty(prefix + budget + 1, 2 * rank, dtype=self._qkv.dtype, device=device),
            tree=TreeState.allocate(
                budget=budget, width=width, max_depth=depths, children=self._children, device=device
            ),
            calls=-(-budget // width),
        )

    def _run(self, plan: Plan) -> None:
        """The whole growth, one fixed sequence of launches over the plan's buffers: what `capture` records."""
        plant(plan.tree, plan.anchor)
        if not plan.calls:
            return
        ids = ordered_topk(plan.draft_logits, self._pool_size)
        pool = Pool(ids, plan.draft_logits.gather(-1, ids))
        self._write_prefix(plan)
        for call in range(plan.calls):
            batch = plan.tree.batch[:1] if call == 0 else plan.tree.batch
            queries = self._node_step(plan, batch)
            publish_children(
                queries=queries,
                residual_head=self._residual_head,
                pool=pool,
                state=plan.tree,
                batch=batch,
                children=self._children,
            )
            select_frontier(plan.tree, children=self._children, last=call + 1 == plan.calls)

    def _write_prefix(self, plan: Plan) -> None:
        """Keys and values of the prefix; with one layer nothing else of it is ever read."""
        rank, rows = self._qkv.shape[1], plan.hidden.shape[0]
        x = self._linear(add_norm(plan.hidden, None, *self._affine("output_norm"))[1], "proposal_in")
        positions = self._positions[:rows] if self._rotary is None else None
        _, normed = add_norm(x, positions, *self._affine("norm_attn"))
        torch.mm(normed, self._qkv[rank:].T, out=plan.cache[:rows])
        if self._rotary is not None:
            cos, sin = (table[:rows, None] for table in self._rotary)
            keys = plan.cache[:rows, :rank].unflatten(-1, (self._heads, -1))
            x = keys.float()
            keys.copy_(torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin))

    def _node_step(self, plan: Plan, batch: Tensor) -> Tensor:
        """Query vectors [W, R] of the nodes in `batch`, whose keys and values enter the cache."""
        tree = plan.tree
        x, normed = node_inputs(
            table=self._token_table,
            positions=self._positions[1:] if self._rotary is None else None,
            tokens=tree.tokens,
            depths=tree.depths,
            batch=batch,
            weight=self._state["norm_attn.weight"],
            bias=self._state["norm_attn.bias"],
        )
        attended = node_attention(
            qkv=F.linear(normed, self._qkv),
            cache=plan.cache,
            paths=tree.paths,
            depths=tree.depths,
            batch=batch,
            heads=self._heads,
            rotary=self._rotary,
        )
        x, normed = add_norm(x, self._linear(attended, "o_proj"), *self._affine("norm_mlp"))
        inner = self._linear(normed, self._mlp[0])
        if self._rotary is None:
            inner = F.gelu(inner)
        else:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        return add_norm(x, self._linear(inner, self._mlp[1]), *self._affine("out_norm"))[1]

    def _affine(self, name: str) -> tuple[Tensor, Tensor]:
        return self._state[f"{name}.weight"], self._state[f"{name}.bias"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._state[f"{name}.weight"], self._state.get(f"{name}.bias"))


def specialisations() -> list[Specialisation]:
    """None: the kernels launched here are listed by the modules that define them."""
    return []
