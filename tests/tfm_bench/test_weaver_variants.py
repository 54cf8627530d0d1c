"""Variants of drafting: lossless whatever they change, and each changes what its name says."""

import dataclasses
import itertools
from functools import cache

import pytest
import torch

from tests.tfm_bench.test_weaver_tree import path_of
from tests.tfm_bench.tiny_stack import BLOCK, HIDDEN, SHIPPED, VOCAB, random_stack, shipped_stack
from tfm_bench.ablations import UNTRAINED_WEAVERS
from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Arm, Draft, generate
from tfm_bench.errors import UserError
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig
from tfm_bench.models.weaver_control import CONTROLS, CONTROLS_FOLDER
from tfm_bench.training.common import save_weights
from tfm_bench.variants import variant_of
from tfm_bench.variants.weaver import UNTRAINED, wrong_tokens
from tfm_bench.verification.sample_match import KeyedNoise

TRAINED = ["blind_to_path", "no_target_hidden", "mixed_loss"]
WITHOUT_FILES = ["weaver_no_residual", "weaver_wrong_parent", "chain_sampled"]
PROMPT = (3, 9, 4)


def control_weaver(seed=3):
    torch.manual_seed(seed)
    weaver = Weaver(
        WeaverConfig(
            d_model=HIDDEN, d_embed=HIDDEN, d_rank=16, num_layers=1, num_heads=2, mlp_dim=16, K=BLOCK - 1,
            candidate_pool_size=12,
        )
    )  # fmt: skip
    for parameter in weaver.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return weaver.requires_grad_(False)


@pytest.fixture
def stack(tmp_path):
    """The random stack, with a random Weaver for every control."""
    for seed, name in enumerate(TRAINED):
        weaver = control_weaver(seed)
        save_weights(tmp_path / CONTROLS_FOLDER / name, weaver.state_dict(), weaver.config.to_dict())
    return dataclasses.replace(random_stack(), directory=tmp_path)


def draft_of(seed=0, depths=BLOCK - 1, noise_seed=2, position=40):
    torch.manual_seed(seed)
    hidden = torch.randn(HIDDEN), torch.randn(depths, HIDDEN)
    return Draft(7, position, *hidden, torch.randn(depths, VOCAB) * 2, KeyedNoise(noise_seed))


def arm_for(variant, budget=9):
    return Arm("dflash_chain", 7, 0, variant) if variant.startswith("chain") else Arm("tfm", budget, 1, variant)


def tree_of(stack, variant, draft, budget=9):
    changed, arm = variant_of(stack, variant), arm_for(variant, budget)
    return changed.builders[arm.method](changed, arm, draft)


def assert_same_tree(one, other):
    assert (one.tokens.tolist(), one.parents.tolist(), one.size) == (
        other.tokens.tolist(),
        other.parents.tolist(),
        other.size,
    )
    torch.testing.assert_close(one.edge_logprobs, other.edge_logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("variant", ["pool_3", "pool_24", *WITHOUT_FILES, *(f"weaver_{name}" for name in TRAINED)])
def test_every_variant_emits_the_tokens_of_plain_decoding(stack, variant, temperature):
    options = {"temperature": temperature, "seed": 2, "max_new_tokens": 60}
    expected = generate(stack, PROMPT, Arm("ar"), **options)
    found = generate(variant_of(stack, variant), PROMPT, arm_for(variant), **options)
    assert found.tokens == expected.tokens
    assert temperature == 0 or sum(found.accepted) > 0


SHIPPED_CONTROLS = sorted(path.name for path in (SHIPPED / CONTROLS_FOLDER).glob("*") if path.is_dir())


@cache
def shipped_text(variant, temperature):
    stack = shipped_stack()
    prompt = stack.tokenizer.encode("Tom has 12 apples and buys 3 bags of 4.")
    arm = Arm("ar") if variant == "plain" else arm_for(variant, 15)
    changed = stack if variant == "plain" else variant_of(stack, variant)
    return generate(changed, prompt, arm, temperature=temperature, seed=1, max_new_tokens=24)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("variant", ["pool_16", *WITHOUT_FILES, *(f"weaver_{name}" for name in SHIPPED_CONTROLS)])
def test_every_variant_of_the_shipped_stack_is_lossless(variant, temperature):
    found = shipped_text(variant, temperature)
    assert found.tokens == shipped_text("plain", temperature).tokens
    assert sum(found.accepted) > 0


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("nothing_at_all", "chain, gdn"),
        ("pool_0", "pool_1 to pool_24"),
        ("pool_25", "pool_1 to pool_24"),
        ("pool_many", "pool_1 to pool_24"),
        ("chain_shuffled", "chain_sampled"),
        ("weaver_of_dreams", "weaver_of_dreams needs a Weaver trained for it"),
    ],
)
def test_unknown_names_are_refused_in_one_line(stack, name, accepted):
    with pytest.raises(UserError, match=accepted) as error:
        variant_of(stack, name)
    assert "\n" not in str(error.value)


def test_a_control_of_another_target_is_refused(stack):
    folder = stack.directory / CONTROLS_FOLDER / "mixed_loss"
    other = Weaver(dataclasses.replace(control_weaver().config, d_model=HIDDEN + 4))
    save_weights(folder, other.state_dict(), other.config.to_dict())
    with pytest.raises(UserError, match=f"d_model is {HIDDEN + 4}; the target's width is {HIDDEN}"):
        variant_of(stack, "weaver_mixed_loss")


def test_the_untrained_weavers_are_those_that_the_ablation_lists():
    assert tuple(UNTRAINED) == UNTRAINED_WEAVERS


def test_the_stack_itself_is_left_as_it_was(stack):
    before = stack.builders["tfm"](stack, arm_for("default"), draft_of())
    for name in (*WITHOUT_FILES, "pool_3", *(f"weaver_{name}" for name in TRAINED)):
        variant_of(stack, name)
    assert_same_tree(stack.builders["tfm"](stack, arm_for("default"), draft_of()), before)


def test_pool_is_the_number_of_candidates(stack):
    draft = draft_of(depths=1)
    for size in (1, 3, 8):
        tree = tree_of(stack, f"pool_{size}", draft, budget=20)
        assert set(tree.tokens[1 : tree.size].tolist()) == set(draft.logits[0].topk(size).indices.tolist())


def test_without_residual_the_best_paths_of_the_truncated_marginal_are_drafted(stack):
    """Enumeration: all paths over the eight best tokens of each depth, the marginal normalised over the pool of 12."""
    depths, budget, pool, children = 3, 30, 12, 8
    draft = draft_of(depths=depths)
    laws = [
        dict(zip(top.indices.tolist(), top.values.log_softmax(0).tolist(), strict=True))
        for top in (row.double().topk(pool) for row in draft.logits)
    ]
    scores = {
        path: sum(laws[depth][token] for depth, token in enumerate(path))
        for length in range(1, depths + 1)
        for path in itertools.product(*([*law][:children] for law in laws[:length]))
    }
    expected = sorted(scores, key=lambda path: -scores[path])[:budget]
    tree = tree_of(stack, "weaver_no_residual", draft, budget)
    assert [path_of(tree, node) for node in range(1, tree.size)] == expected
    with_residual = tree_of(stack, "default", draft, budget)
    assert [path_of(with_residual, node) for node in range(1, budget + 1)] != expected


def test_the_permutation_spares_no_token():
    wrong = wrong_tokens(VOCAB)
    assert sorted(wrong.tolist()) == list(range(VOCAB))
    assert all(wrong[token] != token for token in range(VOCAB))
    assert torch.equal(wrong, wrong_tokens(VOCAB))


def test_wrong_parents_are_other_tokens_for_all_but_the_anchor(stack):
    """Scored by hand: every path of the tree by teacher forcing, its drafted tokens replaced, its anchor not."""
    draft, target, weaver = draft_of(), stack.target, stack.weaver.weaver
    tree, wrong = tree_of(stack, "weaver_wrong_parent", draft, budget=20), wrong_tokens(VOCAB)
    assert int(tree.tokens[0]) == draft.anchor
    for node in range(1, tree.size):
        *above, token = path_of(tree, node)
        shown = [draft.anchor, *(int(wrong[t]) for t in above)]
        pool = draft.logits[len(above)].topk(12).indices
        residual = weaver.path_scores(
            draft.target_hidden[None], draft.hidden[None], target.embed(torch.tensor(shown))[None],
            target.head.weight, pool.expand(1, len(shown), -1),
        )[0, -1]  # fmt: skip
        law = dict(
            zip(pool.tolist(), (draft.logits[len(above), pool] + residual).log_softmax(-1).tolist(), strict=True)
        )
        assert float(tree.edge_logprobs[node]) == pytest.approx(law[token], abs=1e-4)


@pytest.mark.parametrize(("depths", "same"), [(1, True), (BLOCK - 1, False)])
def test_wrong_parents_leave_the_first_drafts_and_change_later_ones(stack, depths, same):
    draft = draft_of(depths=depths)
    right, wrong = (tree_of(stack, name, draft, budget=8) for name in ("default", "weaver_wrong_parent"))
    assert (right.tokens.tolist() == wrong.tokens.tolist()) is same
    assert not same or right.edge_logprobs.tolist() == wrong.edge_logprobs.tolist()


def test_a_control_is_shown_in_drafting_what_it_was_shown_in_training(stack):
    """A blind Weaver must be a factorised drafter: the same law at all nodes of a depth, unlike the full one."""
    draft = draft_of()
    for name, blind in (("blind_to_path", True), ("mixed_loss", False)):
        tree = tree_of(stack, f"weaver_{name}", draft, budget=60)
        laws = {}
        for node in range(1, tree.size):
            edge = (len(path_of(tree, node)), int(tree.tokens[node]))
            laws.setdefault(edge, []).append(round(float(tree.edge_logprobs[node]), 4))
        repeated = [values for values in laws.values() if len(values) > 1]
        assert len(repeated) > 3
        assert all(max(values) - min(values) < 2e-4 for values in repeated) is blind


def test_a_weaver_without_target_hidden_does_not_notice_another_one(stack):
    draft = draft_of()
    other = draft._replace(target_hidden=-draft.target_hidden)
    variant = "weaver_no_target_hidden"
    assert_same_tree(tree_of(stack, variant, draft), tree_of(stack, variant, other))
    noticed = [tree_of(stack, "default", one).edge_logprobs for one in (draft, other)]
    assert float((noticed[0] - noticed[1]).abs().max()) > 1e-2


@pytest.mark.parametrize("name", list(CONTROLS))
@pytest.mark.parametrize("compiled", [True, False])
def test_a_controlled_runtime_is_one_whose_inputs_are_zeroed_by_hand(stack, name, compiled):
    weaver, target, control = control_weaver(), stack.target, CONTROLS[name]
    embedding, head = target.embedding, target.head.weight
    hidden = torch.zeros(HIDDEN) if name == "no_target_hidden" else None
    runtime = WeaverRuntime(weaver, embedding, head, control=control, compiled=compiled)
    shown = torch.zeros_like(embedding) if name == "blind_to_path" else embedding
    by_hand = WeaverRuntime(weaver, shown, head, compiled=compiled)
    draft = draft_of()
    tree = runtime.build(7, draft.target_hidden, draft.hidden, draft.logits, 20, 2)
    expected = by_hand.build(7, draft.target_hidden if hidden is None else hidden, draft.hidden, draft.logits, 20, 2)
    assert_same_tree(tree, expected)
    full = WeaverRuntime(weaver, embedding, head, compiled=compiled)
    assert full.build(7, draft.target_hidden, draft.hidden, draft.logits, 20, 2).tokens.tolist() != tree.tokens.tolist()


def test_sampled_chains_have_the_law_of_the_marginals(stack):
    """Frequencies over many rounds against the softmax, depth by depth; and depths draw apart from each other."""
    draft, rounds = draft_of(depths=2), 4000
    sampled = variant_of(stack, "chain_sampled")
    build, arm = sampled.builders["dflash_chain"], Arm("dflash_chain", 2)
    trees = [build(sampled, arm, draft._replace(position=3 * i)) for i in range(rounds)]
    tokens = torch.stack([tree.tokens[1:] for tree in trees])
    law = draft.logits.softmax(-1)
    for depth in range(2):
        found = torch.bincount(tokens[:, depth], minlength=VOCAB) / rounds
        assert float((found - law[depth]).abs().sum()) / 2 < 0.05
    pairs = torch.bincount(tokens[:, 0] * VOCAB + tokens[:, 1], minlength=VOCAB**2) / rounds
    assert float((pairs - torch.outer(law[0], law[1]).flatten()).abs().sum()) / 2 < 0.15
    tree = trees[0]
    expected = [0.0, *(float(law[d, t].log()) for d, t in enumerate(tokens[0].tolist()))]
    assert tree.edge_logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    assert tree.parents.tolist() == [-1, 0, 1]


def test_sampled_chains_do_not_share_the_noise_of_the_target(stack):
    """With the target's own noise a chain of the target's law would always be accepted."""
    draft, agreed, rounds = draft_of(depths=1), 0, 400
    law = draft.logits[0].softmax(-1)
    for position in range(rounds):
        token = int(tree_of(stack, "chain_sampled", draft._replace(position=position)).tokens[1])
        noise = draft.noise.gumbel(position + 1, VOCAB)
        agreed += token == int((draft.logits[0] + noise).argmax())
    expected = float((law * law).sum())
    assert abs(agreed / rounds - expected) < 4 * (expected / rounds) ** 0.5
    assert expected < 0.6
