"""Trees on the device, interpreted, against the structure that the host derives."""

from __future__ import annotations

import pytest
import torch

from kernels.gdn_tree.structure import TreeStructure
from kernels.gdn_tree.triton_structure import WORD_BITS, as_device_tree, device_tree

SHAPES = ["chain", "star", "caterpillar", "random", "wide", "mixed"]


@pytest.fixture(autouse=True)
def _poisoned_allocations(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, **options).fill_(-(2**30)))


def ancestors(words):
    """[S, N, N] bool from words [S, N, ceil(N / 32)]."""
    bits = (words.unsqueeze(-1) >> torch.arange(WORD_BITS)) & 1
    nodes = words.shape[1]
    assert not bits.flatten(2)[..., nodes:].any()
    return bits.flatten(2)[..., :nodes].bool()


@pytest.mark.parametrize("nodes", [1, 2, 31, 32, 33, 64, 65, 129])
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_the_host(shape, nodes, make_parents):
    parents = torch.tensor(make_parents(shape, nodes), dtype=torch.int32 if nodes % 2 else torch.int64)
    tree = device_tree(parents, max_depth=nodes)
    assert tree.max_depth == nodes
    assert tree.parents.dtype == tree.words.dtype == torch.int32
    assert tree.parents.tolist() == [parents.tolist()]
    assert torch.equal(ancestors(tree.words)[0], TreeStructure.from_parents(parents).ancestors)


def test_different_trees(make_parents):
    parents = torch.tensor([make_parents(shape, 40) for shape in SHAPES]).T.contiguous().T
    tree = device_tree(parents)
    assert tree.max_depth == 39
    expected = [TreeStructure.from_parents(row).ancestors for row in parents]
    assert torch.equal(ancestors(tree.words), torch.stack(expected))


@pytest.mark.parametrize("wrong", [-1, -7, 5, 6, 10**6])
def test_padding_has_no_bits(wrong):
    """Whatever is no earlier node makes a row padding: no climb can leave the tree or go on for ever."""
    tree = device_tree(torch.tensor([wrong, 0, 1, 0, 3, wrong, 4, 2]))
    assert tree.parents[0].tolist() == [-1, 0, 1, 0, 3, -1, 4, 2]
    rows = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [], [0, 3, 4, 6], [0, 1, 2, 7]]
    assert [row.nonzero().flatten().tolist() for row in ancestors(tree.words)[0]] == rows


def test_structures_are_converted_once(make_parents):
    structure = TreeStructure.from_parents(torch.tensor(make_parents("wide", 33)))
    tree = as_device_tree(structure)
    assert as_device_tree(structure) is tree
    assert as_device_tree(tree) is tree
    assert tree.max_depth == int(structure.depths.max())
    assert torch.equal(ancestors(tree.words)[0], structure.ancestors)
