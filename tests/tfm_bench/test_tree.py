"""TokenTree and TreeStructure against walks from each node to the anchor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gdn_tree.structure import CONV_WIDTH, TreeStructure
from tfm_bench.tree import TokenTree


@st.composite
def parent_lists(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    nodes = draw(st.integers(1, max_nodes))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]


def walk_up(parents: list[int], node: int) -> list[int]:
    """The node, its parent, and so on up to the anchor."""
    chain = []
    while node != -1:
        chain.append(node)
        node = parents[node]
    return chain


def structure_of(parents: list[int]) -> TreeStructure:
    return TreeStructure.from_parents(torch.tensor(parents))


def tree_of(parents: list[int], padding: int = 0) -> TokenTree:
    """Tree whose tokens are 100 + index, so that siblings differ."""
    nodes = len(parents)
    return TokenTree.from_lists(range(100, 100 + nodes), parents, [-0.5] * nodes, width=nodes + padding)


@given(parent_lists())
def test_ancestors_are_what_a_walk_meets(parents: list[int]) -> None:
    ancestors = structure_of(parents).ancestors
    for node in range(len(parents)):
        assert ancestors[node].nonzero().flatten().tolist() == sorted(walk_up(parents, node))


@given(parent_lists())
def test_depth_counts_the_steps_of_a_walk(parents: list[int]) -> None:
    structure = structure_of(parents)
    assert structure.depths.tolist() == [len(walk_up(parents, node)) - 1 for node in range(len(parents))]
    assert structure.depths.tolist() == (structure.ancestors.sum(-1) - 1).tolist()


@given(parent_lists())
def test_path_to_is_a_walk_reversed(parents: list[int]) -> None:
    structure = structure_of(parents)
    for node in range(len(parents)):
        assert structure.path_to(node) == walk_up(parents, node)[::-1]


@given(parent_lists())
def test_levels_partition_the_nodes_by_depth(parents: list[int]) -> None:
    structure = structure_of(parents)
    assert sorted(node for level in structure.levels for node in level.tolist()) == list(range(len(parents)))
    for depth, level in enumerate(structure.levels):
        assert len(level) > 0
        assert level.tolist() == [n for n in range(len(parents)) if len(walk_up(parents, n)) - 1 == depth]


@given(parent_lists())
def test_leaves_are_nobodys_parent(parents: list[int]) -> None:
    assert structure_of(parents).leaves == [node for node in range(len(parents)) if parents.count(node) == 0]


@given(parent_lists())
def test_conv_taps_follow_the_path_into_the_committed_window(parents: list[int]) -> None:
    history = CONV_WIDTH - 1
    taps = structure_of(parents).conv_taps
    assert taps.shape == (len(parents), CONV_WIDTH)
    for node in range(len(parents)):
        inputs = [*range(history), *(history + step for step in walk_up(parents, node)[::-1])]
        assert taps[node].tolist() == inputs[-CONV_WIDTH:]


def test_conv_taps_of_a_known_tree() -> None:
    taps = structure_of([-1, 0, 0, 1, 3]).conv_taps.tolist()
    assert taps == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 4, 6], [3, 4, 6, 7]]


@given(parent_lists(), st.integers(0, 10_000))
def test_positions_go_by_depth(parents: list[int], start: int) -> None:
    positions = tree_of(parents).positions(start).tolist()
    assert positions == [start + len(walk_up(parents, node)) - 1 for node in range(len(parents))]


def test_positions_of_siblings_are_equal() -> None:
    assert tree_of([-1, 0, 0, 0]).positions(7).tolist() == [7, 8, 8, 8]


@given(parent_lists())
def test_children_invert_the_parents(parents: list[int]) -> None:
    tree = tree_of(parents)
    for node, children in enumerate(tree.children):
        assert children == {100 + child: child for child in range(len(parents)) if parents[child] == node}


@given(parent_lists(max_nodes=12), st.integers(1, 9))
def test_padding_changes_no_real_node(parents: list[int], padding: int) -> None:
    plain, padded = tree_of(parents), tree_of(parents, padding)
    size = len(parents)
    assert (padded.size, padded.width) == (size, size + padding)
    assert padded.children == plain.children
    for name in ("tokens", "parents", "edge_logprobs", "depths"):
        assert torch.equal(getattr(padded, name)[:size], getattr(plain, name))
    assert torch.equal(padded.structure.ancestors[:size, :size], plain.structure.ancestors)
    assert torch.equal(padded.structure.conv_taps[:size], plain.structure.conv_taps)
    assert not padded.structure.ancestors[:size, size:].any()


@given(parent_lists(max_nodes=12), st.integers(1, 9))
def test_padding_rows_hang_under_the_anchor_as_impossible_leaves(parents: list[int], padding: int) -> None:
    tree = tree_of(parents, padding)
    for row in range(tree.size, tree.width):
        assert tree.parents[row] == 0
        assert tree.depths[row] == 1
        assert tree.edge_logprobs[row] == float("-inf")
        assert tree.structure.ancestors[row].nonzero().flatten().tolist() == [0, row]


def test_tensors_have_the_promised_types() -> None:
    tree = tree_of([-1, 0, 1], padding=2)
    assert (tree.tokens.dtype, tree.parents.dtype) == (torch.int64, torch.int64)
    assert (tree.depths.dtype, tree.structure.conv_taps.dtype) == (torch.int64, torch.int64)
    assert (tree.edge_logprobs.dtype, tree.structure.ancestors.dtype) == (torch.float32, torch.bool)


@pytest.mark.parametrize(
    ("tokens", "parents", "logprobs", "width"),
    [
        pytest.param([], [], [], 4, id="empty"),
        pytest.param([1, 2], [-1], [0.0, -1.0], 4, id="parents-short"),
        pytest.param([1, 2], [-1, 0], [0.0], 4, id="logprobs-short"),
        pytest.param([1, 2, 3], [-1, 0, 0], [0.0, -1.0, -1.0], 2, id="wider-than-width"),
        pytest.param([1, 2], [0, 0], [0.0, -1.0], 2, id="no-anchor"),
        pytest.param([1, 2], [-1, -1], [0.0, -1.0], 2, id="two-anchors"),
        pytest.param([1, 2], [-1, 1], [0.0, -1.0], 2, id="own-parent"),
        pytest.param([1, 2, 3], [-1, 2, 0], [0.0, -1.0, -1.0], 3, id="child-before-parent"),
    ],
)
def test_bad_lists_are_refused(tokens: list[int], parents: list[int], logprobs: list[float], width: int) -> None:
    with pytest.raises(ValueError, match=r"a tree needs|node 0 is the anchor"):
        TokenTree.from_lists(tokens, parents, logprobs, width)


@pytest.mark.parametrize("nodes", [1, 2, 16])
def test_a_chain_is_the_tree_of_its_parents_and_shares_its_structure(nodes):
    tokens, logprobs = list(range(nodes)), [-0.1 * i for i in range(nodes)]
    chain = TokenTree.chain(tokens, logprobs)
    plain = TokenTree.from_lists(tokens, range(-1, nodes - 1), logprobs, nodes)
    assert torch.equal(chain.parents, plain.parents)
    assert torch.equal(chain.edge_logprobs, plain.edge_logprobs)
    assert torch.equal(chain.structure.ancestors, plain.structure.ancestors)
    assert torch.equal(chain.structure.conv_taps, plain.structure.conv_taps)
    assert TokenTree.chain(tokens, logprobs).structure is chain.structure


def test_an_empty_chain_is_refused():
    with pytest.raises(ValueError, match="1 to 0"):
        TokenTree.chain([], [])
