"""A target whose Gated-DeltaNet kernels are Triton's, interpreted: trees from parents alone, one launch per commit."""

import pytest
import torch

from kernels.gdn_tree import TORCH
from tests.tfm_bench.models.tiny_targets import close, make_target, random_tokens, random_tree

triton_commit = pytest.importorskip("kernels.gdn_tree.triton_commit")
from kernels.gdn_tree import triton_conv, triton_fused, triton_recurrent, triton_structure  # noqa: E402

COMMITS = {"replay": triton_commit.replay, "fold": triton_commit.fold}
VERIFY = {"fused": triton_fused.fused_tree_gated_delta_rule, "node_recurrent": triton_recurrent.node_recurrent}


def implementation(seen):
    """As kernels.gdn_tree.implementations makes it on a GPU; notes the form in which kernels get a tree."""

    def noted(kernel):
        def call(**arguments):
            seen.append(type(arguments["structure"]).__name__)
            return kernel(**arguments)

        return call

    return TORCH._replace(
        name="triton",
        verify=TORCH.verify | {name: noted(kernel) for name, kernel in VERIFY.items()},
        commit=TORCH.commit | COMMITS,
        tree_causal_conv=noted(triton_conv.tree_causal_conv),
        bounded_tree=triton_structure.device_tree,
        commits_windows=True,
    )


@pytest.mark.parametrize(("method", "commit"), [("fused", "replay"), ("node_recurrent", "fold")])
def test_verification_and_commit_are_those_of_torch(method, commit):
    seen = []
    reference = make_target("hybrid4", commit=commit).with_gdn_verify(method, TORCH)
    target = reference.with_gdn_verify(method, implementation(seen))
    states = [model.new_state(40, 7) for model in (reference, target)]
    for model, state in zip((reference, target), states, strict=True):
        model.prefill(state, random_tokens(5))
    for number in range(2):
        tree = random_tree(number, 7, seed=number)
        expected, found = (m.verify(s, tree) for m, s in zip((reference, target), states, strict=True))
        close(found.logits, expected.logits)
        for model, state in zip((reference, target), states, strict=True):
            model.commit(state, tree.structure.path_to(6))
        close(states[1].recurrent, states[0].recurrent)
        close(states[1].conv, states[0].conv)
    assert set(seen) == {"DeviceTree"}


def test_a_method_that_triton_lacks_gets_the_whole_structure():
    seen = []
    target = make_target("hybrid4").with_gdn_verify("level_recurrent", implementation(seen))
    state = target.new_state(20, 3)
    target.prefill(state, torch.tensor([1, 2]))
    assert set(seen) == {"TreeStructure"}
