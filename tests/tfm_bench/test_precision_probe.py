"""The probe of `ablation_precision` on the shipped stack."""

import pytest

from tests.tfm_bench.fake_cells import ROOT
from tests.tfm_bench.tiny_stack import SHIPPED
from tfm_bench.ablations import probe_settings
from tfm_bench.config import load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.measure.cells import load_stack
from tfm_bench.measure.commit_drift import COMMITS
from tfm_bench.measure.probes import precision


def settings(drift_tokens):
    defaults = read_yaml(ROOT / "config" / "default.yaml")
    changed = {"precision": {"budget": 8, "drift_tokens": drift_tokens}, "max_new_tokens": 16}
    stack = defaults["stack"] | {"path": str(SHIPPED), "threads": 1}
    config = load_config(defaults | {"stack": stack, "ablations": defaults["ablations"] | changed})
    return probe_settings(config, "precision")


@pytest.fixture(scope="module")
def stack():
    return load_stack(settings(1).stack)


def test_observations_of_both_dtypes_and_commits(stack):
    found = list(precision.probe(stack, settings(140)))
    for dtype in precision.DTYPES:
        rows = [one for one in found if one["dtype"] == dtype]
        assert [one["commit"] for one in rows] == list(COMMITS) * (len(rows) // 2)
        assert [one["tokens"] // precision.EVERY_TOKENS for one in rows[:4]] == [1, 1, 2, 2]
    for one in found:
        assert one["state_error"] < (1e-5 if one["dtype"] == "float32" else 0.05)
        assert one["logit_error"] < (1e-5 if one["dtype"] == "float32" else 0.05)


def test_the_text_is_of_the_length_that_was_asked_for(stack):
    rounds = precision.long_text(stack, settings(140))
    assert sum(len(path) for _, path in rounds[:-1]) >= 140
    assert sum(len(path) for _, path in rounds[:-2]) < 140


def test_a_length_that_the_prompts_do_not_give(stack, monkeypatch):
    load = precision.load_prompts
    monkeypatch.setattr(precision, "load_prompts", lambda *where: load(*where, 1))
    with pytest.raises(UserError, match=r"precision\.drift_tokens: found 9999; the test prompts of math give \d+"):
        precision.long_text(stack, settings(9999))
