"""Verdicts on known intervals, and measures on made-up tables whose answer is plain."""

import math

import pandas as pd
import pytest
import yaml

from tests.tfm_bench.decode_rows import decode_rows
from tfm_bench.errors import UserError
from tfm_bench.report.acceptance import table_acceptance_ratio
from tfm_bench.report.claim_measures import MEASURES
from tfm_bench.report.claims import (
    CONTRADICTED,
    DIRECTION,
    NOT_TESTABLE,
    REPRODUCED,
    Claim,
    Measured,
    Missing,
    read_claims,
    table_claims,
    verdict_of,
)
from tfm_bench.report.speedup import table_headline

ENDS = {"": 0.0, "_low": -0.05, "_high": 0.05}


def claim(kind="at_least", paper=1.3, no_effect=1.0):
    bounds = {"holds": {}, "about": {"paper": paper}}.get(kind, {"paper": paper, "no_effect": no_effect})
    text = dict.fromkeys(("claim", "setting", "unit", "rule"), "text")
    return Claim(id="one", measure="one", kind=kind, **bounds, **text)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.2, 1.4, REPRODUCED),
        (1.5, 1.9, REPRODUCED),
        (1.15, 1.3, REPRODUCED),
        (1.14, 1.9, DIRECTION),
        (1.05, 1.29, DIRECTION),
        (0.9, 1.2, CONTRADICTED),
        (0.5, 0.7, CONTRADICTED),
        (0.9, 1.4, NOT_TESTABLE),
        (1.0, 1.2, CONTRADICTED),
        (1.0, 1.3, NOT_TESTABLE),
        (math.nan, math.nan, NOT_TESTABLE),
        (1.2, math.nan, NOT_TESTABLE),
        (1.2, math.inf, NOT_TESTABLE),
    ],
)
def test_a_verdict_follows_from_the_interval_alone(low, high, verdict):
    assert verdict_of(claim(), Measured(1.2, low, high, "")) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.10, 0.11, REPRODUCED),
        (0.02, 0.20, REPRODUCED),
        (0.03, 0.04, CONTRADICTED),
        (0.16, 0.30, CONTRADICTED),
        (0.15, 0.16, REPRODUCED),
    ],
)
def test_about_is_within_a_quarter(low, high, verdict):
    assert verdict_of(claim("about", paper=0.12), Measured(0.1, low, high, "")) == verdict


def test_what_always_holds_is_contradicted_by_one_failure():
    assert verdict_of(claim("holds"), Measured(1.0, math.nan, math.nan, "")) == REPRODUCED
    assert verdict_of(claim("holds"), Measured(0.999, math.nan, math.nan, "")) == CONTRADICTED


def test_the_shipped_claims_are_read_and_all_their_measures_exist():
    claims = read_claims()
    assert {claim.measure for claim in claims} == set(MEASURES)
    assert {claim.paper for claim in claims} >= {4.37, 1.247, 1.77, 1.32, 7.1, 4.6, 2.7, 1.5}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"kind": "roughly"}, "kind"),
        ({"paper": None}, "at_least needs paper"),
        ({"extra": 1}, "extra"),
        ({"id": "A b"}, "id"),
    ],
)
def test_a_claim_that_is_not_accepted_is_named(tmp_path, change, found):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([claim().model_dump() | change]))
    with pytest.raises(UserError, match=found):
        read_claims(path)


def test_an_id_stands_once(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([claim().model_dump()] * 2))
    with pytest.raises(UserError, match="found one twice"):
        read_claims(path)


def test_a_row_per_claim_and_a_reason_where_nothing_was_measured():
    table = table_claims([claim()], {"one": lambda _: Missing("no GPU")}, {})
    (row,) = table.to_dict("records")
    assert (row["verdict"], row["reason"], row["paper_value"]) == (NOT_TESTABLE, "no GPU", 1.3)
    assert math.isnan(row["measured"])
    with pytest.raises(UserError, match="measure: found 'one'; accepted are other"):
        table_claims([claim()], {"other": lambda _: Missing("")}, {})


@pytest.fixture(scope="module")
def tables():
    decode = decode_rows()
    probe = {"temperature": [0.0, 1.0, 1.0], "trees": [4, 5, 6], "trees_as_claimed": [4, 5, 6]}
    probe |= {"rounds": [4, 5, 6], "rounds_unwritten": [4, 5, 5], "gdn_ms": [9.0, 1.0, 2.0], "decode_ms": [10.0] * 3}
    probe |= {"dataset": ["math"] * 3, "budget": [64] * 3}
    return {
        "decode": decode,
        "headline": table_headline(decode),
        "acceptance_ratio": table_acceptance_ratio(decode),
        "claims_probe": pd.DataFrame(probe),
    }


def test_speed_and_acceptance_are_those_of_all_data_sets_at_t_1(tables):
    # decode_rows: on dev tfm is fastest at 8 nodes (3 tokens in 13 ms), where test takes 20; ar takes 10 a token.
    assert MEASURES["speedup_over_ar"](tables).value == pytest.approx(3 / 20 * 10)
    found = MEASURES["accepted_drafts_over_ddtree"](tables)
    assert found.value == pytest.approx(3 / 2)
    assert "code 1.50" in found.reason
    assert "(budget 64)" in found.reason
    unequal = tables["acceptance_ratio"].assign(budget=15, baseline_verify_width=7)
    assert isinstance(MEASURES["accepted_drafts_over_chain_16_rows"]({"acceptance_ratio": unequal}), Missing)
    without = tables | {"headline": tables["headline"][tables["headline"]["temperature"] == 0.0]}
    assert isinstance(MEASURES["speedup_over_ar"](without), Missing)


def test_shares_are_those_of_what_was_watched(tables):
    assert MEASURES["weaver_calls"](tables).value == 1
    assert MEASURES["nothing_written_for_rejected_nodes"](tables).value == pytest.approx(14 / 15)
    assert MEASURES["gdn_verify_share"](tables).value == pytest.approx(3 / 20)
    assert MEASURES["lossless"](tables).value == 1
    for change in ({"lossless": False}, {"status": "failed", "lossless": None}):
        decode = tables["decode"].astype({"lossless": object})
        decode.loc[decode["method"] == "tfm", list(change)] = list(change.values())
        assert MEASURES["lossless"]({"decode": decode}).value < 1
    sampled = {"decode": tables["decode"].assign(rule="server_sampler")}
    assert isinstance(MEASURES["lossless"](sampled), Missing)  # which no server has promised
    nothing = tables["claims_probe"].assign(trees=0, trees_as_claimed=0)
    assert isinstance(MEASURES["weaver_calls"]({"claims_probe": nothing}), Missing)


def kernel_rows(nodes, fused, recurrent):
    same = {"tree": "weaver", "batch": 1, "shapes": "27b", "nodes": nodes, "cache": "cold", "phase": "verify"}
    origin = {"status": "ok", "device": "a CPU", "dtype": "float32"}
    return [
        {**same, **origin, "implementation": name, "arm": arm, "median_ms": ms, "p20_ms": 0.9 * ms, "p80_ms": 1.1 * ms}
        for name, times in {"slow": (10 * fused, 99 * recurrent), "fast": (fused, recurrent)}.items()
        for arm, ms in zip(("fused", "node_recurrent"), times, strict=True)
    ]


def test_kernels_are_compared_within_the_fastest_implementation():
    found = MEASURES["gdn_verify_64_nodes"]({"gdn_verify": pd.DataFrame(kernel_rows(64, 2.0, 9.0))})
    assert found.value == pytest.approx(4.5)
    assert (found.low, found.high) == pytest.approx((4.5 * 0.9 / 1.1, 4.5 * 1.1 / 0.9))
    assert found.reason.startswith("fast against fast")
    assert isinstance(MEASURES["gdn_verify_16_nodes"]({"gdn_verify": pd.DataFrame(kernel_rows(64, 2.0, 9.0))}), Missing)


def test_the_ceiling_is_judged_at_the_deepest_token_where_there_is_most_and_least_choice():
    rows = [
        {"dataset": dataset, "depth": depth, "drafter": drafter, "places": 9, "acceptance": acceptance}
        | {f"above_{bound}{end}": gain + shift for bound, gain in gains.items() for end, shift in ENDS.items()}
        for dataset, ceiling, of_best in (("free", (0.9, 0.4), (0.0, 0.2)), ("tied", (0.3, 0.8), (0.1, -0.1)))
        for depth, of_ceiling, best in zip((1, 2), ceiling, of_best, strict=True)
        for gains in ({"best_factorised": best, "ceiling": best + 0.3},)
        for drafter, acceptance in (("ceiling", of_ceiling), ("weaver", of_ceiling + best))
    ]
    tables = {"ablation_ceiling": pd.DataFrame(rows)}
    most, least = (MEASURES[f"passes_the_ceiling_{choice}_choice"](tables) for choice in ("most", "least"))
    assert (most.value, most.low) == pytest.approx((0.2, 0.15))
    assert most.reason == (
        "free, depth 2, 9 places; the interval is above 0 at depths: 2; "
        "above the oracle marginal, sampled from: 0.50 [0.45, 0.55]"
    )
    assert least.value == pytest.approx(-0.1)
    assert "at depths: 1;" in least.reason
    assert isinstance(MEASURES["passes_the_ceiling_most_choice"]({}), Missing)
    single = {"ablation_ceiling": tables["ablation_ceiling"].query("dataset == 'free'")}
    assert isinstance(MEASURES["passes_the_ceiling_least_choice"](single), Missing)
