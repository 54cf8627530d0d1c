"""Whole generations on a simulated GPU: nothing mixes devices, and the host waits where it must and nowhere else."""

from collections import Counter

import pytest
import torch

from tests.tfm_bench.simulated_gpu import GpuTensor, on_gpu, simulated_gpu
from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import Arm, generate

pytest.importorskip("triton")

ARMS = [Arm("ar"), Arm("dflash_chain", 7), Arm("ddtree", 9), Arm("tfm", 9, 3)]


@pytest.mark.parametrize("arm", ARMS, ids=[arm.method for arm in ARMS])
@pytest.mark.parametrize(("kind", "temperature"), [("hybrid", 1.0), ("dense", 0.0)])
def test_tokens_are_those_of_the_cpu_and_a_round_waits_for_its_tree_and_its_path(kind, temperature, arm):
    options = {"temperature": temperature, "seed": 3, "max_new_tokens": 12}
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
