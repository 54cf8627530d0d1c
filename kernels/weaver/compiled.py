"""The compiled Weaver tree behind ctypes: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kernels.compile import load_library

SOURCE = Path(__file__).with_name("weaver_tree.cpp")
LANES = 16
BLOCK = "blocks.0."
AFFINES = ("output_norm", "proposal_in", "norm_attn", "qkv", "o_proj", "norm_mlp", "fc1", "fc2", "out_norm")
SIZES = ("hidden", "rank", "heads", "mlp", "vocab", "pool", "children")
TABLES = ("pos_emb", "token_table", "residual_head")


class Affine(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class WeaverTables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, Affine) for name in AFFINES),
        *((name, ctypes.c_void_p) for name in TABLES),
    )


class DraftInputs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("anchor", "depths", "budget", "width")),
        *((name, ctypes.c_void_p) for name in ("target_hidden", "draft_hidden", "draft_logits", "round_ms")),
    )


def weaver_library() -> ctypes.CDLL | None:
    """The compiled tree builder; None, and a warning once, where it cannot be built."""
    return load_library(SOURCE)


def supports(state: Mapping[str, Tensor]) -> bool:
    """Whether the compiled path covers a Weaver with this state dict: v1, one layer, on the CPU, widths in lanes."""
    if "pos_emb" not in state or f"{BLOCK}q_proj.weight" not in state or "blocks.1.norm_attn.weight" in state:
        return False
    widths = (state["pos_emb"].shape[1], state[f"{BLOCK}fc1.bias"].shape[0])
    return state["pos_emb"].device.type == "cpu" and all(width % LANES == 0 for width in widths)


class CompiledWeaverTree:
    """Tree builder over one Weaver's weights, copied to fp32 in the layout that the C++ reads.

    state: published v1 names, one layer (see `supports`); token_table [V or more, R] and residual_head [V, R].
    Raises RuntimeError where the library was not compiled.
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
    ) -> None:
        library = weaver_library()
        if library is None:
            raise RuntimeError("the Weaver tree was not compiled on this machine")
        self._function = library.weaver_tree
        self._function.restype = ctypes.c_int64
        self._keep: list[Tensor] = []
        self._tokens, self._max_depths = token_table.shape[0], state["pos_emb"].shape[0]
        rank, hidden = state["proposal_in.weight"].shape
        mlp, vocab = state[f"{BLOCK}fc1.bias"].shape[0], residual_head.shape[0]
        sizes = dict(zip(SIZES, (hidden, rank, heads, mlp, vocab, pool_size, children), strict=True))
        tables = zip(TABLES, (state["pos_emb"], token_table, residual_head), strict=True)
        pointers = {name: self._pointer(table) for name, table in tables}
        self._tables = WeaverTables(**sizes, **pointers, **{name: self._affine(state, name) for name in AFFINES})

    def _pointer(self, tensor: Tensor) -> int:
        """Address of an fp32 contiguous copy (or of the tensor itself) that lives as long as this object."""
        self._keep.append(tensor.detach().float().contiguous())
        return self._keep[-1].data_ptr()

    def _affine(self, state: Mapping[str, Tensor], name: str) -> Affine:
        prefix = name if f"{name}.weight" in state else BLOCK + name
        if name == "qkv":
            weight = torch.cat([state[f"{BLOCK}{part}_proj.weight"] for part in "qkv"])
        else:
            weight = state[f"{prefix}.weight"]
        bias = state.get(f"{prefix}.bias")
        transposed = weight.T if weight.dim() == 2 else weight
        return Affine(self._pointer(transposed), None if bias is None else self._pointer(bias))

    def _check(self, anchor: int, target_hidden: Tensor, draft_hidden: Tensor, draft_logits: Tensor) -> None:
        """The C++ trusts its pointers: nothing of a wrong size may reach it."""
        depths, hidden, vocab = draft_hidden.shape[0], self._tables.hidden, self._tables.vocab
        if not 0 <= anchor < self._tokens or not 1 <= depths <= self._max_depths:
            raise ValueError(f"anchor {anchor} of {self._tokens} tokens, {depths} depths of 1 to {self._max_depths}")
        shapes = ((hidden,), (depths, hidden), (depths, vocab))
        for tensor, shape in zip((target_hidden, draft_hidden, draft_logits), shapes, strict=True):
            if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise ValueError(f"expected contiguous fp32 {shape}, got {tensor.dtype} {tuple(tensor.shape)}")

    def grow(
        self,
        *,
        anchor: int,
        target_hidden: Tensor,
        draft_hidden: Tensor,
        draft_logits: Tensor,
        budget: int,
        width: int,
        round_ms: Sequence[float] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """tokens, parents [budget + 1] int64, edge log-probabilities [budget + 1] fp32 and the number of nodes.

        target_hidden [H], draft_hidden [D, H], draft_logits [D, V], contiguous fp32 on the CPU, D at most K;
        budget >= 0, width >= 1. Rows beyond the number of nodes are padding under the anchor. round_ms [budget + 1],
        milliseconds of a round by its drafts: growth ends with the first call whose nodes do not increase the expected
        tokens per millisecond, and without them.
        """
        inputs = (target_hidden, draft_hidden, draft_logits)
        self._check(anchor, *inputs)
        if round_ms is not None and len(round_ms) != budget + 1:
            raise ValueError(f"{len(round_ms)} round times for trees of 0 to {budget} drafts")
        costs = None if round_ms is None else (ctypes.c_double * (budget + 1))(*round_ms)
        pointers = (*(x.data_ptr() for x in inputs), costs and ctypes.addressof(costs))
        request = DraftInputs(anchor, draft_hidden.shape[0], budget, width, *pointers)
        tokens, parents = torch.empty(2, budget + 1, dtype=torch.int64)
        edges = torch.empty(budget + 1)
        outputs = (ctypes.c_void_p(x.data_ptr()) for x in (tokens, parents, edges))
        size = self._function(ctypes.byref(self._tables), ctypes.byref(request), *outputs)
        return tokens, parents, edges, size
