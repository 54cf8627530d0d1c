"""Variants of Gated-DeltaNet verification: the text of AR whichever verifies; records say whose kernels ran."""

import dataclasses
from collections import Counter

import pytest

from tests.tfm_bench.fake_cells import settings_for
from tests.tfm_bench.tiny_stack import random_stack, shipped_stack
from tfm_bench.ablations import GDN_METHODS, TORCH_GDN_METHODS
from tfm_bench.config import ArmSettings
from tfm_bench.engine import Arm, generate
from tfm_bench.errors import UserError
from tfm_bench.measure.records import decode_table, read_records
from tfm_bench.models.target_layers import GdnLayer
from tfm_bench.variants import variant_of

VARIANTS = [f"gdn_{method}" for method in (*GDN_METHODS, "level_recurrent", *TORCH_GDN_METHODS)]


def text(stack, arm):
    return generate(stack, [3, 9, 4], arm, temperature=1.0, seed=1, max_new_tokens=14).tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_method_emits_the_text_of_ar(variant):
    stack = random_stack()
    plain = text(stack, Arm("ar"))
    assert len(plain) > 3
    assert text(variant_of(stack, variant), Arm("tfm", 9, 2, variant)) == plain


def test_a_variant_says_whose_kernels_verify():
    stack = shipped_stack()
    own = stack.gdn_implementation
    assert own == stack.target.kernels.name
    names = {variant: variant_of(stack, variant).gdn_implementation for variant in VARIANTS}
    assert {names[f"gdn_{method}"] for method in GDN_METHODS} == {own}
    assert {name for variant, name in names.items() if "torch" in variant or "level" in variant} == {"torch"}
    assert stack.gdn_implementation == own


def test_torch_variants_run_nothing_else():
    """Convolution and commit too: the fused arm of torch differs from its recurrences by the solve alone."""
    target = variant_of(shipped_stack(), "gdn_torch_fused").target
    layers = [layer for layer in target.layers if isinstance(layer, GdnLayer)]
    assert layers
    assert {layer.kernels.name for layer in layers} == {target.kernels.name} == {"torch"}
    assert {layer.verify for layer in layers} == {target.kernels.verify["fused"]}
    assert target.new_state(8, 4).kernels.name == "torch"


@pytest.mark.parametrize("variant", ["gdn_chunk", "gdn_torch_chunk", "gdn_"])
def test_a_method_that_does_not_exist_is_refused(variant):
    with pytest.raises(UserError, match=r"gdn_verify is .*accepted are fused"):
        variant_of(random_stack(), variant)


def test_records_name_the_implementation_of_their_own_arm(cells, stack_folder, monkeypatch):
    def variant(stack, name):
        return stack if name == "default" else dataclasses.replace(stack, gdn_implementation="another")

    monkeypatch.setattr(cells, "variant_of", variant)
    arms = [ArmSettings(method="tfm", budget=8, expansion_width=1, variant=name) for name in ("default", "gdn_other")]
    settings = settings_for(stack_folder, prompts=2).model_copy(update={"arms": arms})
    cells.decode_cell(settings, stack_folder / "cell.jsonl")
    records = read_records(stack_folder / "cell.jsonl")
    assert Counter((r.variant, r.gdn_implementation) for r in records) == {
        ("default", "fake"): 3 * 2,  # ar, its control and tfm
        ("gdn_other", "another"): 2,
    }
    assert set(decode_table([stack_folder / "cell.jsonl"])["gdn_implementation"]) == {"fake", "another"}
