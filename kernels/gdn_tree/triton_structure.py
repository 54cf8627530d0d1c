"""Tree structure on the device, from parents alone, without the host ever looking at them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot import Specialisation
from kernels.gdn_tree.structure import TreeStructure

WORD_BITS = 32


class DeviceTree(NamedTuple):
    """S trees of N nodes each, S being 1 (shared by the batch) or the batch size.

    parents [S, N] int32, -1 at the anchor (node 0) and at padding rows; words [S, N, ceil(N / 32)] int32: bit c of word
    w of row i is set iff node 32 w + c is i or an ancestor of i, and a padding row has no bit set at all;
    max_depth: a bound on the depth of every node, known to the host.
    """

    parents: Tensor
    words: Tensor
    max_depth: int


def device_tree(parents: Tensor, *, max_depth: int | None = None) -> DeviceTree:
    """parents [N] or [S, N], int32 or int64; capturable in a CUDA graph.

    Row i > 0 whose parent is not in 0 .. i - 1 is padding. max_depth: no node may be deeper; N - 1 if None.
    """
    given = parents.reshape(-1, parents.shape[-1]).contiguous()
    trees, nodes = given.shape
    word_count = triton.cdiv(nodes, WORD_BITS)
    copied = torch.empty(trees, nodes, dtype=torch.int32, device=given.device)
    words = torch.empty(trees, nodes, word_count, dtype=torch.int32, device=given.device)
    _ancestor_words[(trees, word_count)](
        given, copied, words, nodes, word_count, ROWS=32, WORDS=triton.next_power_of_2(word_count), num_warps=1
    )
    return DeviceTree(copied, words, nodes - 1 if max_depth is None else max_depth)


def as_device_tree(structure: TreeStructure | DeviceTree) -> DeviceTree:
    """A TreeStructure is converted once (reading its depth on the host); a DeviceTree is returned as it is."""
    return structure if isinstance(structure, DeviceTree) else _from_structure(structure)


@lru_cache(maxsize=8)
def _from_structure(structure: TreeStructure) -> DeviceTree:
    return device_tree(structure.parents, max_depth=int(structure.depths.max()))


@triton.jit(do_not_specialize=["nodes", "word_count"])
def _ancestor_words(given, parents, words, nodes, word_count, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Program (tree, row tile): its rows climb to the anchor side by side; the loop ends with the deepest of them."""
    tree = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < nodes
    given += tree * nodes
    parent = tl.load(given + row, mask=inside, other=-1).to(tl.int32)
    # A parent must come first: so every climb ends, and none leaves the tree.
    parent = tl.where(parent < row, tl.maximum(parent, -1), -1)
    tl.store(parents + tree * nodes + row, parent, mask=inside)
    word = tl.arange(0, WORDS)[None, :]
    bits = tl.zeros([ROWS, WORDS], tl.int32)
    node = tl.where(inside & ((parent >= 0) | (row == 0)), row, -1)
    while tl.max(node, 0) >= 0:
        bits |= tl.where((node >> 5)[:, None] == word, (1 << (node & 31))[:, None], 0)
        above = tl.load(given + node, mask=node >= 0, other=-1).to(tl.int32)
        node = tl.where(above < node, above, -1)
    place = (tree * nodes + row[:, None]) * word_count + word
    tl.store(words + place, bits, mask=inside[:, None] & (word < word_count))


def specialisations() -> list[Specialisation]:
    """Trees of 65 and 512 nodes, parents as int32 and int64."""
    counts = {"nodes": "i32", "word_count": "i32"}
    return [
        Specialisation(
            name=f"ancestor_words_{kind}_{words}",
            kernel=_ancestor_words,
            signature={"given": f"*{kind}:16", "parents": "*i32:16", "words": "*i32:16", **counts},
            constexprs={"ROWS": 32, "WORDS": words},
            num_warps=1,
        )
        for kind in ("i32", "i64")
        for words in (4, 16)
    ]
