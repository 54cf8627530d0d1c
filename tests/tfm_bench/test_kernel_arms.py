"""Which kernels may be timed, on what, and in which turns."""

import json

import pytest
import torch

from kernels.gdn_tree import TORCH, Implementation, naive_tree_gated_delta_rule
from tests.tfm_bench.tiny_kernels import MIXED, PARENTS, problem_of, registry
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.errors import UserError
from tfm_bench.kernel_config import KernelCase
from tfm_bench.measure.clocks import CpuClock
from tfm_bench.measure.kernel_arms import Verdict, judge, list_arms
from tfm_bench.measure.kernel_problems import SHAPES, expected_of, relative_rms, tree_parents
from tfm_bench.measure.kernel_timing import RotatedStates, TimedArm, interleaved


def verdicts(available: dict[str, Implementation], case: KernelCase = MIXED, memory: int = 2048) -> dict[str, Verdict]:
    problem = problem_of(case)
    expected = expected_of(problem)
    arms = list_arms(available, list(available))
    return {arm.name: judge(arm, problem, expected, memory) for arm in arms}


def test_tiny_shapes_are_those_of_the_shipped_target():
    config = json.loads((SHIPPED / "target" / "config.json").read_text())
    assert SHAPES["tiny"] == (
        config["linear_num_key_heads"],
        config["linear_num_value_heads"],
        config["linear_key_head_dim"],
        config["linear_value_head_dim"],
        config["layer_types"].count("linear_attention"),
    )


def test_expected_is_the_definition_whole():
    problem = problem_of()
    wide = {name: x.double() for name, x in problem.inputs.items()}
    outputs, states = naive_tree_gated_delta_rule(
        **wide, initial_state=problem.state.double(), parents=torch.tensor(PARENTS)
    )
    expected = expected_of(problem)
    assert problem.path.tolist() == [0, 1, 3]
    assert torch.equal(expected.outputs, outputs)
    assert torch.equal(expected.committed, states[:, 3])


def test_chain_and_star_are_what_they_are_called():
    assert tree_parents(KernelCase("tiny", "chain", 4, 1), []) == [-1, 0, 1, 2]
    assert tree_parents(KernelCase("tiny", "star", 4, 1), []) == [-1, 0, 0, 0]
    with pytest.raises(UserError, match="none of kind weaver with 9 nodes"):
        tree_parents(KernelCase("tiny", "weaver", 9, 1), [])


def test_a_right_arm_is_ok_with_its_errors():
    found = verdicts(registry())
    assert {name: verdict.status for name, verdict in found.items()} == dict.fromkeys(TORCH.verify, "ok")
    assert found["fused"].errors.keys() == {"verify", "replay", "fold"}
    assert found["node_recurrent"].errors.keys() == {"verify", "select"}
    assert all(0 < error < 2e-6 for verdict in found.values() for error in verdict.errors.values())


def wrong_output(**arguments):
    result = TORCH.verify["fused"](**arguments)
    result.outputs[0, 3, 2] *= 1.001
    return result


def wrong_u(**arguments):
    result = TORCH.verify["fused"](**arguments)
    return result._replace(pseudo_values=result.pseudo_values * 1.001)


def not_finite(**arguments):
    return TORCH.verify["fused"](**arguments)._replace(outputs=torch.full_like(arguments["v"], torch.nan))


def writes_state(**arguments):
    arguments["initial_state"][0, 0, 0, 0] += 1e-3
    return TORCH.verify["fused"](**arguments)


def raises(**_):
    raise RuntimeError("no kernel image\nmore")


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        (wrong_output, "verify"),
        (wrong_u, "fold"),
        (not_finite, "verify nan"),
        (writes_state, "changed the committed state"),
        (raises, "RuntimeError: no kernel image"),
    ],
)
def test_a_wrong_arm_is_failed(arm, reason):
    found = verdicts(registry(fused=arm))
    assert found["fused"].status == "failed"
    assert reason in found["fused"].reason
    assert found["node_recurrent"].status == "ok"


def test_a_wrong_commit_fails_its_arm():
    def halved(**arguments):
        TORCH.commit["select"](**arguments)
        arguments["state"].mul_(0.5)

    available = {"torch": TORCH._replace(commit=TORCH.commit | {"select": halved})}
    found = verdicts(available)
    assert found["node_recurrent"].status == "failed"
    assert "select 5.0e-01" in found["node_recurrent"].reason
    assert found["fused"].status == "ok"


def test_an_arm_that_would_store_too_much_is_skipped_before_it_runs():
    def never(**_):
        raise AssertionError

    case = KernelCase("tiny", "ddtree", 7, 6)
    found = verdicts(registry(node_recurrent=never, level_recurrent=never), case, memory=1)
    for arm in ("node_recurrent", "level_recurrent"):
        assert found[arm].status == "skipped"
        assert found[arm].reason == "its stored states take 1 MB; kernels.memory_megabytes allows 1"
    assert found["fused"].status == found["path_recurrent"].status == "ok"


def test_an_arm_that_does_not_cover_a_problem_is_unsupported():
    def chains_only(**_):
        raise NotImplementedError("chains only")

    found = verdicts(registry(chunk=chains_only))
    assert (found["chunk"].status, found["chunk"].reason) == ("unsupported", "chains only")


def test_turns_rotate_until_the_time_of_all_is_used_up():
    order = []
    cost = {"a": 1.0, "b": 4.0, "c": 0.1}

    def run(arm):
        order.append(arm)
        return {("verify", None): cost[arm] / 2, ("total", "replay"): cost[arm] / 2}

    samples = interleaved(list("abc"), run, least=2, most=6, seconds=0.004)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert {arm: len(times) for arm, times in samples.items()} == {"a": 3, "b": 3, "c": 3}
    assert len(interleaved(list("abc"), run, least=4, most=6, seconds=0.0)["a"]) == 4
    assert len(interleaved(list("abc"), run, least=2, most=6, seconds=9.0)["a"]) == 6
    assert interleaved([], run, least=1, most=2, seconds=1.0) == {}


def test_states_take_turns_and_commits_are_undone():
    pristine = torch.arange(6.0).view(1, 1, 2, 3)
    states = RotatedStates(pristine, 3)
    first, second, third, again = (states.take() for _ in range(4))
    assert len({state.data_ptr() for state in (first, second, third, pristine)}) == 4
    assert again is first
    second.mul_(2)
    states.restore(second)
    assert torch.equal(second, pristine)


def test_a_run_times_every_phase_on_fresh_states():
    problem = problem_of()
    arm = next(arm for arm in list_arms(registry(), ["torch"]) if arm.name == "fused")
    expected = expected_of(problem).committed
    seen = []

    class Watching(CpuClock):
        def time(self, work, *arguments, cache=None):
            before = arguments[-1].clone()
            milliseconds, result = super().time(work, *arguments, cache=cache)
            seen.append((torch.equal(before, problem.state), relative_rms(arguments[-1], expected) < 2e-6))
            return milliseconds, result

    timed = TimedArm(arm, problem, RotatedStates(problem.state, 2), Watching())
    for _ in range(3):
        assert list(timed.run(None)) == arm.phases
    assert seen == [(True, False), *[(True, True)] * 4] * 3
