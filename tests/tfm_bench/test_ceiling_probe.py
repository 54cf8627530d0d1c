"""The probe of `ablation_ceiling` on a random stack: drafts, Weaver's conditionals, observations."""

import json

import pytest
import torch

from tests.tfm_bench.fake_cells import ROOT
from tests.tfm_bench.tiny_stack import BLOCK, VOCAB, random_stack
from tfm_bench.ablations import probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.engine import Arm, generate
from tfm_bench.measure.continuations import Prefixes, sampled_prefixes
from tfm_bench.measure.probes import ceiling

TEXT = [3, 9, 4, 17, 8]


@pytest.fixture(scope="module")
def stack():
    return random_stack()


@pytest.fixture(scope="module")
def draft(stack):
    return ceiling.draft_behind(stack, TEXT)


def test_the_draft_is_that_of_the_decode_loop(stack):
    seen = []
    options = {"temperature": 1.0, "seed": 0, "max_new_tokens": 8}
    tokens = generate(stack, TEXT, Arm("ddtree", budget=4), **options, observer=lambda *x: seen.append(x[0])).tokens
    own, loop = ceiling.draft_behind(stack, [*TEXT, tokens[0]]), seen[0]
    assert (own.anchor, own.position) == (loop.anchor, loop.position)
    for field in ("target_hidden", "hidden", "logits"):
        assert torch.allclose(getattr(own, field), getattr(loop, field), atol=1e-5), field


def test_weaver_conditionals_are_the_edges_of_its_tree(stack, draft):
    tree = stack.weaver.build(draft.anchor, draft.target_hidden, draft.hidden, draft.logits, 24, 1)
    depths = tree.depths.tolist()
    assert max(depths) >= 2
    for node in range(1, tree.size):
        path = tree.structure.path_to(node)
        above = tree.tokens[path[1:-1]][None]
        found = ceiling.weaver_conditionals(stack, draft, above)
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
        assert int((found > 0).sum()) == stack.weaver.pool_size
        edge = float(found[0, tree.tokens[node]].log())
        assert edge == pytest.approx(float(tree.edge_logprobs[node]), abs=2e-4)
    other = (above + 1) % VOCAB
    assert not torch.allclose(ceiling.weaver_conditionals(stack, draft, other), found, atol=1e-4)


def test_acceptances_by_nested_loops(stack, draft):
    depths = list(
        sampled_prefixes(
            stack.target, TEXT, samples=32, depths=3, temperature=1.0, stop_ids=(), generator=torch.Generator()
        )
    )
    for depth, prefixes in enumerate(depths):
        found = {one["drafter"]: one for one in ceiling.acceptances(stack, draft, prefixes)}
        q = draft.logits[depth].softmax(-1).tolist()
        woven = ceiling.weaver_conditionals(stack, draft, prefixes.paths).tolist()
        rows, p = prefixes.rows.tolist(), prefixes.p.tolist()
        of_drafter = sum(min(q[v], p[row][v]) for row in rows for v in range(VOCAB)) / len(rows)
        of_weaver = sum(min(woven[row][v], p[row][v]) for row in rows for v in range(VOCAB)) / len(rows)
        of_likeliest = sum(p[row][woven[row].index(max(woven[row]))] for row in rows) / len(rows)
        assert found["dflash"]["acceptance"] == pytest.approx(of_drafter, abs=1e-5)
        assert found["weaver"]["acceptance"] == pytest.approx(of_weaver, abs=1e-5)
        assert found["weaver_argmax"]["acceptance"] == pytest.approx(of_likeliest, abs=1e-5)


def test_oracles_are_judged_on_samples_that_they_were_not_fitted_on(stack, draft):
    """Two prefixes, each in one half: the other half's marginal fits nothing, that of all samples half."""
    p = torch.zeros(2, VOCAB)
    p[0, 1] = p[1, 2] = 1.0
    prefixes = Prefixes(torch.tensor([[4], [5]]), p, torch.tensor([0, 1] * 8))
    found = {one["drafter"]: one for one in ceiling.acceptances(stack, draft, prefixes)}
    assert found["ceiling"]["acceptance"] == 0.0
    assert found["ceiling"]["acceptance_same_samples"] == pytest.approx(0.5)
    assert found["best_factorised"]["acceptance_same_samples"] == pytest.approx(0.5)


class Letters:
    """A tokenizer of the letters a to x."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "prompts").mkdir()
    lines = [json.dumps({"id": f"p{i}", "text": text, "kind": "text"}) for i, text in enumerate(("abc", "bed", "gab"))]
    for dataset in ("math", "chat"):
        (tmp_path / "prompts" / f"{dataset}.test.jsonl").write_text("\n".join(lines))
    defaults = read_yaml(ROOT / "config" / "default.yaml")
    changed = {"ceiling": {"datasets": ["math", "chat"], "samples": 8, "places": 4, "depths": 3}, "max_new_tokens": 6}
    stack = defaults["stack"] | {"path": str(tmp_path)}
    return probe_settings(
        load_config(defaults | {"stack": stack, "ablations": defaults["ablations"] | changed}), "ceiling"
    )


def with_tokenizer(stack, stop_ids=frozenset()):
    return type(stack)(stack.directory, stack.target, stack.drafter, stack.weaver, Letters(), stop_ids)


def test_places_are_anchors_in_the_text_of_distinct_prompts(stack, settings):
    stack = with_tokenizer(stack)
    places = ceiling.places_of(stack, settings, "math")
    assert [place.number for place in places] == [0, 1, 2, 3]
    assert [place.prompt_id for place in places] == ["p0", "p0", "p1", "p2"]
    assert places[0].text != places[1].text
    for index, prompt in enumerate(("abc", "bed", "gab")):
        ids = Letters().encode(prompt)
        options = {"temperature": 1.0, "seed": settings.seed + index, "max_new_tokens": 6}
        text = ids + generate(stack, ids, Arm("ar"), **options).tokens
        for place in (place for place in places if place.prompt_id == f"p{index}"):
            assert len(ids) < len(place.text) <= len(text)
            assert place.text == text[: len(place.text)]


def test_no_place_stands_at_a_stop_token(stack, settings):
    stops = frozenset(range(0, VOCAB, 2))
    places = ceiling.places_of(with_tokenizer(stack, stops), settings, "math")
    assert all(place.text[-1] not in stops for place in places)


def test_observations(stack, settings):
    found = list(ceiling.probe(with_tokenizer(stack), settings))
    keys = {(one["dataset"], one["place"], one["depth"], one["drafter"]) for one in found}
    assert len(keys) == len(found) == 2 * 4 * min(3, BLOCK - 1) * 7
    for one in found:
        assert one["samples"] == 8
        assert 0 <= one["acceptance"] <= 1 + 1e-6
        assert one["position"] >= 3
