"""Trees of real rounds of the shipped stack, and the one that the kernel benchmark takes."""

from pathlib import Path

import pytest
import torch

from kernels.gdn_tree import TreeStructure
from tests.tfm_bench.tiny_kernels import DEFAULTS
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.config import TreeSettings, load_config, tree_settings
from tfm_bench.errors import UserError
from tfm_bench.measure.recorded_trees import RecordedTree, median_tree, read_recorded_trees, recorded_trees


@pytest.fixture(scope="module")
def tree_file(tmp_path_factory) -> Path:
    config = load_config(DEFAULTS)
    stack = config.stack.model_copy(update={"path": str(SHIPPED), "threads": 1})
    recorded = config.kernels.recorded.model_copy(update={"prompts": 1, "max_new_tokens": 8})
    settings = tree_settings(config).model_copy(update={"stack": stack, "recorded": recorded, "nodes": [9, 16]})
    output = tmp_path_factory.mktemp("trees") / "trees.jsonl"
    recorded_trees(TreeSettings.model_validate(settings.model_dump()), output)
    return output


def test_recorded_trees_are_full_trees_of_every_kind_and_size(tree_file):
    trees = read_recorded_trees(tree_file)
    assert {(tree.tree, tree.nodes) for tree in trees} == {(kind, n) for kind in ("ddtree", "weaver") for n in (9, 16)}
    assert {tree.dataset for tree in trees} == {"math", "code"}
    for tree in trees:
        structure = TreeStructure.from_parents(torch.tensor(tree.parents))
        assert len(tree.parents) == tree.nodes
        assert tree.parents[0] == -1
        assert all(0 <= parent < node for node, parent in enumerate(tree.parents) if node)
        assert int(structure.depths.sum()) == tree.depth_sum
        assert len(tree.checkpoint_sha256) == 64
    assert any(tree.round > 0 for tree in trees)


def test_the_benchmark_takes_the_tree_of_median_depth_sum(tree_file):
    template = read_recorded_trees(tree_file)[0]

    def tree(depth_sum: int, **changes) -> RecordedTree:
        return template.model_copy(update={"tree": "weaver", "nodes": 9, "depth_sum": depth_sum, **changes})

    trees = [tree(30), tree(10), tree(20), tree(99, nodes=16), tree(5, tree="ddtree"), tree(25)]
    assert median_tree(trees, "weaver", 9).depth_sum == 20
    assert median_tree([*trees, tree(26)], "weaver", 9).depth_sum == 25


def test_a_damaged_tree_file_names_the_line(tmp_path):
    (tmp_path / "trees.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"trees\.jsonl, line 1: not a recorded tree"):
        read_recorded_trees(tmp_path / "trees.jsonl")
