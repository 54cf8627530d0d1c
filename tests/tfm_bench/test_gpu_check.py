"""The comparison that benchmarks/gpu_check.py makes on a GPU, here on recordings of the CPU."""

import dataclasses

from benchmarks.gpu_check import differences, main
from tests.tfm_bench.models.recorded_ops import RecordedOps
from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import Arm
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.graphed_target import GraphedTarget
from tfm_bench.verification.rules import Rule
from tfm_bench.verification.sample_match import Acceptance

ARMS = [Arm("ar"), Arm("ddtree", budget=6)]
PROMPTS = [[3, 1, 4], [2, 7]]


def test_equal_tokens_leave_no_line():
    eager = random_stack("dense")
    graphed = dataclasses.replace(eager, target=GraphedTarget(eager.target, RecordedOps(), Capacity(40, 7)))
    assert list(differences(eager, graphed, PROMPTS, ARMS, 1.0, 12)) == []


def test_other_tokens_are_named_with_their_place():
    eager = random_stack("dense")

    def wrong(tree, logits, **options):
        accepted = eager.rule.accept(tree, logits, **options)
        return Acceptance(accepted.path, (accepted.bonus + 1) % 24) if tree.width > 1 else accepted

    other = dataclasses.replace(eager, rule=Rule("wrong", wrong))
    lines = list(differences(eager, other, PROMPTS, ARMS, 0.0, 12))
    assert len(lines) == len(PROMPTS)
    assert lines[0].startswith("ddtree, budget 6, T = 0, prompt 0: differs from token ")
    both = list(differences(other, other, PROMPTS, ARMS, 0.0, 12))
    assert all("plain decoding emits other tokens from" in line for line in both)
    assert len(both) == len(PROMPTS)


def test_without_a_gpu_it_says_so(capsys):
    assert main() == 2
    assert "no GPU here" in capsys.readouterr().err
