"""Recordings: they read their buffers alone, and a target that replays them is the target that does not."""

import dataclasses

import pytest
import torch

from kernels.gdn_tree import TORCH
from kernels.gdn_tree.fused import GdnTreeOutputs
from tests.tfm_bench.models.recorded_ops import RecordedOps
from tests.tfm_bench.models.test_dflash_runtime import CONFIGS
from tests.tfm_bench.models.tiny_drafters import make_drafter
from tests.tfm_bench.models.tiny_targets import make_target, random_tokens, random_tree
from tests.tfm_bench.tiny_stack import random_stack
from tfm_bench.engine import Arm, generate
from tfm_bench.models import cache
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.graphed_drafter import GraphedDrafter
from tfm_bench.models.graphed_target import CommitKey, GraphedTarget, GraphKey
from tfm_bench.models.graphs import Graphed

CPU = torch.device("cpu")


def masked_verify(*, q, k, v, g, beta, initial_state, structure, scale=None):
    """Fused verification in plain operations on the ancestors alone, for recording: torch's own plans on the host."""
    scale = k.shape[-1] ** -0.5
    group = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (q, k))
    v, g, beta = v.transpose(1, 2), g.transpose(1, 2), beta.transpose(1, 2)
    seen = structure.ancestors.to(v.dtype)
    total = g @ seen.T
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~structure.ancestors, float("-inf")).exp()
    lower = beta[..., None] * decay * (k @ k.transpose(-1, -2)) * (1 - torch.eye(v.shape[2], dtype=v.dtype))
    right = beta[..., None] * (v - total.exp()[..., None] * (k @ initial_state))
    u = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    out = scale * (total.exp()[..., None] * (q @ initial_state) + (decay * (q @ k.transpose(-1, -2))) @ u)
    return GdnTreeOutputs(out.transpose(1, 2), u.transpose(1, 2), None)


ROOM = Capacity(length=20, width=2)  # less than any test asks for
KERNELS = TORCH._replace(verify=TORCH.verify | {"fused": masked_verify})


@pytest.fixture
def few_extents(monkeypatch):
    """Extents as on a GPU, in small."""
    monkeypatch.setattr(cache, "EXTENT_STEP", {"cpu": 16})
    monkeypatch.setattr("tfm_bench.models.target.EXTENT_STEP", {"cpu": 16})


def test_a_recording_reads_its_own_buffers():
    backend = RecordedOps()
    double = Graphed(lambda key, x, y: x * 2 + y, backend, CPU)
    first = double("a", torch.ones(3), torch.zeros(3))
    assert first.tolist() == [2, 2, 2]
    second = double("a", torch.full((3,), 5.0), torch.ones(3))
    assert second is first
    assert first.tolist() == [11, 11, 11]
    assert double("b", torch.ones(2), torch.ones(2)).tolist() == [3, 3]
    assert (backend.records, backend.replays, double.keys) == (2, 3, ["a", "b"])


def test_recording_leaves_what_the_work_changes_as_it_was():
    total = torch.zeros(2)
    added = Graphed(lambda key, x: total.add_(x), RecordedOps(), CPU, preserved=[total])
    for _ in range(3):
        added("a", torch.ones(2))
    assert total.tolist() == [3, 3]


def test_a_path_that_does_not_fit_is_refused_before_anything_is_written(few_extents):
    target = GraphedTarget(make_target("dense"), RecordedOps(), ROOM)
    state = target.new_state(20, 4)
    target.prefill(state, random_tokens(7))
    target.verify(state, random_tree(1, 4, seed=0))
    with pytest.raises(ValueError, match="does not start at the anchor"):
        target.commit(state, [1])
    assert state.length == 7
    assert target.commit(state, [0]).tolist() == [0]
    assert state.length == 8


def test_inputs_of_another_form_are_refused():
    double = Graphed(lambda key, x: x * 2, RecordedOps(), CPU)
    double("a", torch.ones(3))
    with pytest.raises(ValueError, match=r"a: recorded for \(3,\) torch.float32, got \(4,\)"):
        double("a", torch.ones(4))
    with pytest.raises(ValueError, match=r"got \(3,\) torch.int64"):
        double("a", torch.ones(3, dtype=torch.int64))


def test_the_backend_freezes_what_the_host_computes_and_refuses_its_reads():
    host = {"factor": 2.0}
    scaled = Graphed(lambda key, x: x * host["factor"], RecordedOps(), CPU)
    scaled("a", torch.ones(2))
    host["factor"] = 3.0
    assert scaled("a", torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="may not read or bring data"):
        Graphed(lambda key, x: x * x.sum().item(), RecordedOps(), CPU)("a", torch.ones(2))
    with pytest.raises(RuntimeError, match="may not read or bring data"):
        Graphed(lambda key, x: x + torch.tensor([1.0, 2.0]), RecordedOps(), CPU)("a", torch.ones(2))


def rounds(target, seed):
    """Outputs of a prefill and of rounds over trees of two widths, each with a commit of some root path."""
    state, outputs = target.new_state(120, 9), []
    target.prefill(state, random_tokens(11 + seed, seed))
    for number in range(8):
        tree = random_tree(int(number), 6 if number % 3 else 9, seed=10 * seed + number)
        output = target.verify(state, tree)
        outputs += [tensor.clone() for tensor in output]
        path = tree.structure.path_to(number % tree.width)
        target.commit(state, path)
        outputs += [state.recurrent.clone(), state.conv.clone()]
    return outputs


@pytest.mark.parametrize("kind", ["dense", "hybrid4"])
def test_replays_are_bit_for_bit_what_is_not_recorded(kind, few_extents):
    eager = make_target(kind)
    if kind != "dense":
        eager = eager.with_gdn_verify("fused", KERNELS)
    backend = RecordedOps()
    graphed = GraphedTarget(eager, backend, ROOM)
    for seed in (0, 3):  # the second sequence takes over state and graphs of the first
        for found, expected in zip(rounds(graphed, seed), rounds(eager, seed), strict=True):
            assert torch.equal(found, expected)
    assert backend.replays == 2 * 16  # a verification and a commit per round
    assert backend.records == len(graphed._verifications.keys) + len(graphed._commits.keys) < 24
    assert {key.width for key in graphed._verifications.keys} == {6, 9}
    assert {key.extent % 16 for key in graphed._verifications.keys} == {0}
    assert {key.committed for key in graphed._commits.keys} > {1, 2}


def test_a_recording_of_kernels_that_plan_on_the_host_is_found_out(few_extents):
    """Which is why a GPU's target replays nothing but kernels that read the tree on the device."""
    eager = make_target("hybrid4").with_gdn_verify("node_recurrent", TORCH)
    pairs = zip(rounds(GraphedTarget(eager, RecordedOps(), ROOM), 0), rounds(eager, 0), strict=True)
    assert not all(torch.equal(found, expected) for found, expected in pairs)


def test_the_state_is_kept_while_its_room_is_enough(few_extents):
    target = GraphedTarget(make_target("dense"), RecordedOps(), ROOM)
    state = target.new_state(50, 4)
    target.prefill(state, random_tokens(7))
    target.verify(state, random_tree(1, 4, seed=0))
    target.commit(state, [0])
    assert target._verifications.keys == [GraphKey(4, 16, 3)]
    assert target._commits.keys == [CommitKey(width=4, committed=1)]
    again = target.new_state(40, 3)
    assert again is state
    assert (again.length, again.pending_width) == (0, 0)
    assert torch.isinf(again.hidden_context).all()
    larger = target.new_state(60, 4)
    assert larger is not state
    assert target._verifications.keys == target._commits.keys == []
    roomy = GraphedTarget(make_target("dense"), RecordedOps(), Capacity(length=90, width=6))
    assert roomy.new_state(60, 7).max_length == 90
    assert roomy.new_state(90, 7) is roomy.new_state(5, 1)
    other = target.with_gdn_verify("fused")
    assert other._state is None


@pytest.mark.parametrize("kind", ["dense", "hybrid4"])
def test_what_is_prepared_is_all_that_rounds_need_and_leaves_no_trace(kind, few_extents):
    eager = make_target(kind)
    if kind != "dense":
        eager = eager.with_gdn_verify("fused", KERNELS)
    backend = RecordedOps()
    graphed = GraphedTarget(eager, backend, Capacity(length=120, width=9))
    state = graphed.new_state(120, 9)
    for width in (6, 9):
        graphed.prepare(state, width, 9)
    assert (state.length, state.pending_width) == (0, 0)
    recorded = backend.records
    for found, expected in zip(rounds(graphed, 3), rounds(eager, 3), strict=True):
        assert torch.equal(found, expected)
    assert backend.records == recorded == 2 * 9 + 6 + 9  # extents 0, 16, ..., 112, 120; lengths of paths


def test_the_second_prompt_is_committed_as_the_first_was_and_recorded_no_more(few_extents):
    """A prefill is no round: once its commits were replayed from graphs of tensors that were long gone."""
    eager = make_target("hybrid4").with_gdn_verify("fused", KERNELS)
    backend = RecordedOps()
    graphed = GraphedTarget(eager, backend, Capacity(length=120, width=9))
    counts = []
    for seed in (0, 1):
        tokens = random_tokens(11, seed)
        expected, found = eager.new_state(120, 9), graphed.new_state(120, 9)
        graphed.prepare(found, 9, 9)
        counts.append((backend.records, backend.replays))
        for target, state in ((eager, expected), (graphed, found)):
            target.prefill(state, tokens)
        for name in ("recurrent", "conv"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        for layer in range(found.keys.shape[0]):
            rows = slice(found.scratch, found.scratch + 11)
            assert torch.equal(found.keys[layer, :, rows], expected.keys[layer, :, rows])
    assert counts[0] == counts[1]


def test_what_a_target_forgets_is_made_anew(few_extents):
    target = GraphedTarget(make_target("dense"), RecordedOps(), ROOM)
    state = target.new_state(50, 4)
    target.prepare(state, 4, 4)
    target.forget()
    fresh = target.new_state(50, 4)
    assert fresh is not state
    assert target._verifications.keys == []
    target.prepare(fresh, 4, 4)
    assert len(target._verifications.keys) == 5


def test_a_generation_records_before_its_first_round(few_extents, monkeypatch):
    monkeypatch.setattr("tfm_bench.models.graphed_drafter.EXTENT_STEP", {"cpu": 16})
    stack, backend = random_stack("dense"), RecordedOps()
    target, drafter = GraphedTarget(stack.target, backend, ROOM), GraphedDrafter(stack.drafter, backend, 20)
    stack, records = dataclasses.replace(stack, target=target, drafter=drafter), []
    options = {"temperature": 1.0, "seed": 4, "max_new_tokens": 40}
    watch = {"on_tokens": lambda _: records.append(backend.records)}
    found = generate(stack, [3, 1, 4], Arm("ddtree", budget=12), **options, **watch)
    assert found.tokens == generate(random_stack("dense"), [3, 1, 4], Arm("ar"), **options).tokens
    assert len(records) > 2
    assert set(records) == {backend.records}


@pytest.mark.parametrize("step", [1, 16])
@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_drafts_are_those_that_are_not_recorded(name, step, monkeypatch):
    monkeypatch.setattr("tfm_bench.models.graphed_drafter.EXTENT_STEP", {"cpu": step})
    config = CONFIGS[name]
    eager, backend = DrafterRuntime(make_drafter(config)), RecordedOps()
    graphed = GraphedDrafter(eager, backend, 40)
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        states, start = (eager.new_state(40), graphed.new_state(40)), 0
        for piece in [1, 2, 1, 4, 11, 3, 1, 16]:
            features = torch.randn(piece, 64, generator=generator)
            block = torch.randn(config.block_size, 32, generator=generator)
            for runtime, state in zip((eager, graphed), states, strict=True):
                runtime.append(state, features, start)
            start += piece
            expected = eager.draft(states[0], block, start)
            torch.testing.assert_close(graphed.draft(states[1], block, start), expected, rtol=1e-5, atol=1e-6)
            rows = slice(config.block_size, config.block_size + start)
            assert torch.equal(states[1].keys[:, :, rows], states[0].keys[:, :, rows])
            assert torch.equal(states[1].values[:, :, rows], states[0].values[:, :, rows])
    assert graphed._appends.keys == [1, 2, 4, 3]  # pieces beyond a block are not recorded
    assert len(graphed._drafts.keys) == (8 if step == 1 else 3)
    with pytest.raises(ValueError, match="a block of 4 rows at 39 is needed"):
        graphed.draft(states[1], block, 12)
    with pytest.raises(ValueError, match="do not follow 39 of 40"):
        graphed.append(states[1], features[:2], 39)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_emits_the_tokens_of_plain_decoding_from_replays(temperature, few_extents):
    options = {"temperature": temperature, "seed": 4, "max_new_tokens": 40}
    stack = random_stack("dense")
    expected = generate(stack, [3, 1, 4], Arm("ar"), **options).tokens
    backend = RecordedOps()
    target, drafter = GraphedTarget(stack.target, backend, ROOM), GraphedDrafter(stack.drafter, backend, 40)
    stack = dataclasses.replace(stack, target=target, drafter=drafter)
    for arm in (Arm("ar"), Arm("dflash_chain", budget=7), Arm("tfm", budget=12, expansion_width=2)):
        found = generate(stack, [3, 1, 4], arm, **options)
        assert found.tokens == expected
    assert backend.replays > backend.records
