"""Tables from a made-up decode.csv whose speeds and acceptances are known."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tfm_bench.errors import UserError
from tfm_bench.report.acceptance import table_acceptance_ratio
from tfm_bench.report.speedup import COLUMNS, HEADLINE_COLUMNS, table_headline, table_speedup
from tfm_bench.report.stage_times import STAGE_COLUMNS, table_stage_times
from tfm_bench.report.tables import escape_latex, to_latex, to_markdown, write_table

# (method, budget, width): accepted drafts per round, milliseconds per round on dev and on test
ARMS = {
    ("ar", 0, 0): (0, 10.0, 10.0),
    ("dflash_chain", 8, 0): (1, 16.0, 16.0),
    ("dflash_chain", 15, 0): (1, 12.0, 12.0),
    ("ddtree", 8, 0): (1, 12.0, 12.0),
    ("ddtree", 64, 0): (2, 15.0, 15.0),
    ("tfm", 8, 1): (2, 13.0, 20.0),
    ("tfm", 64, 4): (3, 20.0, 13.0),
}
ROUNDS = 12


def decode_rows(datasets=("math", "code"), temperatures=(0.0, 1.0), repeats=2, prompts=4) -> pd.DataFrame:
    rows = []
    places = itertools.product(("dev", "test"), datasets, temperatures, range(repeats), range(prompts), ARMS)
    for split, dataset, temperature, repeat, prompt, (method, budget, width) in places:
        accepted, dev_ms, test_ms = ARMS[method, budget, width]
        jitter = 1 + 0.1 * prompt + 0.02 * repeat
        staged = split == "test" and repeat == 0
        rows.append(
            {
                **{"stack": "tiny", "repeat": repeat, "split": split, "dataset": dataset, "temperature": temperature},
                **{"prompt": prompt, "method": method, "budget": budget, "expansion_width": width},
                **{"verify_width": budget + 1, "tokens": ROUNDS * (accepted + 1), "rounds": ROUNDS},
                **{"accepted_drafts_sum": ROUNDS * accepted, "prefill_ms": 5.0},
                "decode_ms": ROUNDS * jitter * (dev_ms if split == "dev" else test_ms),
                **{column: 2.0 * ROUNDS if staged else np.nan for column in STAGE_COLUMNS},
                **{"lossless": True, "first_divergence": np.nan, "degenerate": False, "dtype": "float32"},
            }
        )
    return pd.DataFrame(rows)


def pick(table: pd.DataFrame, **values) -> pd.DataFrame:
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def test_speedup_has_exactly_the_promised_columns_and_rows():
    table = table_speedup(decode_rows())
    assert ",".join(COLUMNS) == (
        "stack,dataset,temperature,method,budget,expansion_width,verify_width,prompts,lossless_prompts,tokens,rounds,"
        "acceptance_length,accepted_drafts,round_time_ms,tokens_per_second,speedup,speedup_low,speedup_high"
    )
    assert list(table.columns) == COLUMNS
    assert len(table) == 2 * 2 * len(ARMS)


def test_speedup_values_are_those_put_in():
    row = pick(table_speedup(decode_rows()), dataset="math", temperature=1.0, method="ddtree", budget=64).iloc[0]
    assert row["prompts"] == row["lossless_prompts"] == 4
    assert row["rounds"] == 8 * ROUNDS
    assert row["tokens"] == 3 * 8 * ROUNDS
    assert row["acceptance_length"] == row["accepted_drafts"] + 1 == 3.0
    assert row["round_time_ms"] == pytest.approx(15.0 * 1.16)
    assert row["tokens_per_second"] == pytest.approx(3 / (15.0 * 1.16) * 1000)
    assert row["speedup"] == pytest.approx(3 * 10 / 15)
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]


def test_plain_decoding_is_its_own_baseline():
    rows = pick(table_speedup(decode_rows()), method="ar")
    assert (rows[["speedup", "speedup_low", "speedup_high", "acceptance_length"]] == 1.0).all(axis=None)


def test_an_arm_that_changes_the_text_has_no_speedup_in_fp32():
    decode = decode_rows()
    wrong = (decode["method"] == "tfm") & (decode["budget"] == 64) & (decode["prompt"] == 2) & (decode["repeat"] == 1)
    decode.loc[wrong & (decode["dataset"] == "math"), "lossless"] = False
    speedups = ["speedup", "speedup_low", "speedup_high"]
    for rows, closed in ((table_speedup(decode), True), (table_speedup(decode.assign(dtype="bfloat16")), False)):
        arm = pick(rows, method="tfm", budget=64, dataset="math")
        assert set(arm["lossless_prompts"]) == {3}
        assert arm[speedups].isna().all(axis=None) == closed
        assert rows.drop(arm.index)[speedups].notna().all(axis=None)
        assert arm["tokens_per_second"].notna().all()


def test_headline_takes_the_budget_that_was_fastest_on_dev_even_if_test_disagrees():
    table = table_headline(decode_rows())
    assert list(table.columns) == HEADLINE_COLUMNS
    assert set(table["chosen_on"]) == {"dev"}
    assert set(pick(table, method="tfm")["budget"]) == {8}
    assert set(pick(table, method="ddtree")["budget"]) == {64}
    assert set(table["dataset"]) == {"math", "code", "all"}
    tfm = pick(table, method="tfm", dataset="all", temperature=0.0).set_index("baseline")
    assert list(tfm.index) == ["ar", "ddtree", "dflash_chain"]
    assert tfm.loc["ddtree", "speedup"] == pytest.approx((3 / 20) / (3 / 15))
    assert tfm.loc["dflash_chain", "speedup"] == pytest.approx((3 / 20) / (2 / 12))
    assert set(tfm["prompts"]) == {8}


def test_a_dataset_without_dev_prompts_takes_the_budgets_of_all_dev_prompts():
    decode = decode_rows()
    table = table_headline(decode[(decode["dataset"] != "code") | (decode["split"] == "test")])
    assert set(pick(table, method="tfm", dataset="code")["budget"]) == {8}
    with pytest.raises(UserError, match="dev split"):
        table_headline(decode[decode["split"] == "test"])


def test_headline_comes_with_and_without_degenerate_prompts():
    decode = decode_rows()
    decode.loc[(decode["dataset"] == "code") & (decode["prompt"] == 0), "degenerate"] = True
    table = table_headline(decode)
    prompts = table.groupby(["dataset", "prompt_selection"])["prompts"].unique().map(list).to_dict()
    assert prompts == {
        ("all", "all"): [8],
        ("all", "not_degenerate"): [7],
        ("code", "all"): [4],
        ("code", "not_degenerate"): [3],
        ("math", "all"): [4],
    }
    assert set(pick(table, dataset="code", prompt_selection="all")["degenerate_prompts"]) == {1}


def test_acceptance_ratio_compares_at_one_budget():
    table = table_acceptance_ratio(decode_rows())
    tfm = pick(table, method="tfm", budget=64, dataset="all", temperature=1.0).set_index("baseline")
    assert tfm.loc["ddtree", "baseline_verify_width"] == 65
    assert tfm.loc["ddtree", "accepted_drafts_ratio"] == 1.5
    assert tfm.loc["dflash_chain", "accepted_drafts_ratio"] == 3.0
    assert (table["accepted_drafts_ratio_low"] <= table["accepted_drafts_ratio"]).all()
    assert not ((table["baseline"] == "ddtree") & (table["verify_width"] != table["baseline_verify_width"])).any()


def test_stage_times_are_per_round_and_sum_up():
    table = table_stage_times(decode_rows())
    assert len(table) == 2 * len(ARMS)
    assert (table[STAGE_COLUMNS] == 2.0).all(axis=None)
    assert (table["staged_round_ms"] == 12.0).all()
    row = pick(table, method="ddtree", budget=64, temperature=0.0).iloc[0]
    assert row["rounds"] == 2 * 4 * ROUNDS
    assert row["round_time_ms"] == pytest.approx(15.0 * 1.15)


def test_a_repeat_without_a_prompt_is_an_error():
    decode = decode_rows()
    gap = (decode["repeat"] == 1) & (decode["prompt"] == 3) & (decode["method"] == "tfm")
    with pytest.raises(ValueError, match="not every repeat"):
        table_speedup(decode[~gap])


def test_files_hold_full_precision_a_pipe_table_and_booktabs(tmp_path):
    table = pd.DataFrame({"method": ["dflash_chain", "tfm"], "budget": [15, 64], "speedup": [1 / 3, np.nan]})
    paths = {"csv": tmp_path / "t.csv", "markdown": tmp_path / "t.md", "latex": tmp_path / "t.tex"}
    write_table(table, **paths)
    assert paths["csv"].read_text() == f"method,budget,speedup\ndflash_chain,15,{1 / 3}\ntfm,64,\n"
    assert paths["markdown"].read_text() == (
        "| method | budget | speedup |\n| --- | ---: | ---: |\n| dflash_chain | 15 | 0.33 |\n| tfm | 64 | – |\n"
    )
    assert paths["latex"].read_text() == (
        "\\begin{tabular}{lrr}\n\\toprule\nmethod & budget & speedup \\\\\n\\midrule\n"
        "dflash\\_chain & 15 & 0.33 \\\\\ntfm & 64 & -- \\\\\n\\bottomrule\n\\end{tabular}\n"
    )
    assert not [path for path in tmp_path.iterdir() if path not in paths.values()]


def test_special_characters_do_not_reach_latex_or_split_a_cell():
    assert escape_latex("a_b & 50% #1 {x} ~^\\") == (
        r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert "a\\_b" in to_latex(pd.DataFrame({"a_b": [1]}))
    assert to_markdown(pd.DataFrame({"x": ["a|b"]})).endswith("| a\\|b |\n")
