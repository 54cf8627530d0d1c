"""Whole generations on a simulated GPU: nothing mixes devices, and the host waits where it must and nowhere else."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.tfm_bench.simulated_gpu import GpuTensor, on_gpu, simulated_gpu
from tests.tfm_bench.test_weaver_variants import control_weaver
from tests.tfm_bench.tiny_stack import VOCAB, random_stack
from tfm_bench.engine import Arm, generate
from tfm_bench.measure.commit_drift import commit_drift, recorded_rounds
from tfm_bench.measure.continuations import sampled_prefixes
from tfm_bench.measure.logit_gap import logit_gap
from tfm_bench.measure.probes import ceiling, claims
from tfm_bench.measure.probes.acceptance_rule import matched_drafts
from tfm_bench.measure.probes.pool import round_ranks
from tfm_bench.models.weaver_control import CONTROLS_FOLDER
from tfm_bench.training.common import save_weights
from tfm_bench.variants import variant_of
from tfm_bench.verification.traversal import TargetRows

pytest.importorskip("triton")

ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 9), Arm("tfm", 9, 3)]


@pytest.mark.parametrize("arm", ARMS, ids=[arm.method for arm in ARMS])
@pytest.mark.parametrize(("kind", "temperature"), [("hybrid", 1.0), ("dense", 0.0)])
def test_tokens_are_those_of_the_cpu_and_a_round_waits_for_its_tree_and_its_path(kind, temperature, arm):
    options = {"temperature": temperature, "seed": 3, "max_new_tokens": 8}
    expected = generate(random_stack(kind), [3, 1, 4], arm, **options)
    with simulated_gpu() as gpu:
        stack = random_stack(kind, place=on_gpu)
        gpu.waits.clear()
        found = generate(stack, [3, 1, 4], arm, **options)
    assert found.tokens == expected.tokens
    assert found.accepted == expected.accepted
    assert (stack.gdn_implementation, stack.weaver_implementation) == (
        "triton" if kind == "hybrid" else "torch",
        "triton",
    )
    # Of the prefill, the first token; plain decoding has no tree to read.
    assert gpu.waits == Counter({"to the CPU": 1 + len(found.rounds) * (1 if arm.method == "ar" else 2)})


@pytest.fixture
def controls(tmp_path):
    """Folder with a random Weaver of the random stack's form as control blind_to_path."""
    weaver = control_weaver()
    save_weights(tmp_path / CONTROLS_FOLDER / "blind_to_path", weaver.state_dict(), weaver.config.to_dict())
    return tmp_path


VARIANTS = ["pool_5", "weaver_wrong_parent", "weaver_blind_to_path", "gdn_torch_node_recurrent", "chain_sampled"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_compute_on_the_device(variant, controls):
    arm = Arm("dflash_chain", 7) if variant == "chain_sampled" else Arm("tfm", 6, 3)
    expected = generate(random_stack(), [3, 1, 4], Arm("ar"), temperature=1.0, seed=3, max_new_tokens=6)
    with simulated_gpu():
        stack = replace(random_stack(place=on_gpu), directory=controls)
        other = variant_of(stack, variant)
        found = generate(other, [3, 1, 4], arm, temperature=1.0, seed=3, max_new_tokens=6)
    assert found.tokens == expected.tokens


def test_probes_compute_on_the_device_in_bf16():
    """Whatever they find there: a place that mixes devices or dtypes raises."""
    arm, options = Arm("tfm", 6, 3), {"temperature": 1.0, "seed": 3, "max_new_tokens": 3}
    with simulated_gpu():
        stack = random_stack(place=partial(on_gpu, dtype=torch.bfloat16))
        watched = claims._observed(stack, arm, [3, 1, 4], options)
        assert watched["trees_as_claimed"] == watched["trees"] > 0
        assert watched["rounds_unwritten"] == watched["rounds"] > 0
        draft = ceiling.draft_behind(stack, [3, 9, 4, 17])
        sampling = {"temperature": 1.0, "stop_ids": (), "generator": torch.Generator()}
        for prefixes in sampled_prefixes(stack.target, [3, 9, 4, 17], samples=4, depths=2, **sampling):
            found = {row["drafter"]: row["acceptance"] for row in ceiling.acceptances(stack, draft, prefixes)}
            assert all(0 <= value <= 1.0001 for value in found.values())
        rounds = recorded_rounds(stack, [3, 1, 4], arm, **options)
        assert [drift.commit for drift in commit_drift(stack.target, rounds, every=2)]
        rows = TargetRows(rounds[-1].tree, torch.randn(7, VOCAB).to("cuda"), 1.0)
        assert 0 <= matched_drafts(rounds[-1].tree, rows) <= 6
        assert next(iter(round_ranks(draft.logits, [2, 3], ())))[0] == 1
        assert logit_gap(stack, [3, 1], [4], expected=1, found=1, temperature=1.0, seed=0) == 0


def test_the_simulation_refuses_what_a_gpu_refuses_and_counts_what_makes_the_host_wait():
    with simulated_gpu() as gpu:
        numbers = torch.arange(3.0, device="cuda")
        with pytest.raises(RuntimeError, match="add: expected all tensors to be on the same device"):
            numbers + torch.ones(3)
        with pytest.raises(RuntimeError, match="not supported"):
            numbers.numpy()
        assert not gpu.waits
        total, doubled = numbers.sum().item(), numbers.mul_(torch.tensor(2.0))
        assert (total, doubled is numbers, numbers.tolist()) == (3.0, True, [0, 2, 4])
        assert numbers[numbers > 1].cpu().tolist() == [2, 4]
        moved = torch.ones(3).to("cuda")
        assert isinstance(moved, GpuTensor)
        assert isinstance(torch.ones(3).pin_memory().to("cuda", non_blocking=True), GpuTensor)
        view = moved[1:]
        view.zero_()
        assert moved.cpu().tolist() == [1, 0, 0]
    assert gpu.waits == Counter(
        {
            "_local_scalar_dense": 1,
            "to the CPU": 3,
            "index": 1,
            "to the GPU from memory that is not pinned": 1,
        }
    )
