"""Tables from a made-up decode.csv whose speeds and acceptances are known."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.tfm_bench.decode_rows import ARMS, ROUNDS, decode_rows
from tfm_bench.errors import UserError
from tfm_bench.report.acceptance import table_acceptance_ratio
from tfm_bench.report.speedup import COLUMNS, HEADLINE_COLUMNS, table_headline, table_speedup
from tfm_bench.report.stage_times import STAGE_COLUMNS, table_stage_times
from tfm_bench.report.tables import LATEX_ESCAPES, Best, escape_latex, to_latex, to_markdown, write_table


def pick(table: pd.DataFrame, **values) -> pd.DataFrame:
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def test_speedup_has_exactly_the_promised_columns_and_rows():
    table = table_speedup(decode_rows())
    assert ",".join(COLUMNS) == (
        "stack,dataset,temperature,method,budget,expansion_width,verify_width,prompts,lossless_prompts,tokens,rounds,"
        "acceptance_length,accepted_drafts,round_time_ms,tokens_per_second,speedup,speedup_low,speedup_high,noise_low,"
        "noise_high,degenerate_prompts,acceptance_ratio,round_time_ratio,status"
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


def test_speedup_is_the_product_of_its_factors():
    for table in (table_speedup(decode_rows()), table_headline(decode_rows())):
        product = table["acceptance_ratio"] * table["round_time_ratio"]
        np.testing.assert_allclose(table["speedup"], product, rtol=1e-14)
    row = pick(table_speedup(decode_rows()), dataset="math", temperature=1.0, method="ddtree", budget=64).iloc[0]
    assert row["acceptance_ratio"] == 3.0
    assert row["round_time_ratio"] == pytest.approx(10 / 15)
    headline = table_headline(decode_rows())
    for factor in ("acceptance_ratio", "round_time_ratio"):
        assert (headline[f"{factor}_low"] <= headline[factor] + 1e-12).all()
        assert (headline[factor] <= headline[f"{factor}_high"] + 1e-12).all()


def test_the_noise_floor_is_the_control_over_plain_decoding_and_in_nothing_else():
    decode = decode_rows()
    for table in (table_speedup(decode), table_headline(decode)):
        assert table["noise_low"].between(0.97, 0.99).all()
        assert table["noise_high"].between(1.01, 1.03).all()
    slow = decode.assign(decode_ms=decode["decode_ms"] * np.where(decode["control"], 3.0, 1.0))
    tables = (table_speedup, table_headline, table_acceptance_ratio, table_stage_times)
    for make in tables:
        pd.testing.assert_frame_equal(
            make(slow).drop(columns=["noise_low", "noise_high"], errors="ignore"),
            make(decode).drop(columns=["noise_low", "noise_high"], errors="ignore"),
        )
    assert (table_speedup(slow)["noise_high"] < 0.4).all()
    assert table_speedup(decode[~decode["control"]])[["noise_low", "noise_high"]].isna().all(axis=None)


def test_a_failed_record_enters_no_sum_and_its_arm_shows_no_speedup_but_the_reason():
    decode = decode_rows()
    failed = (decode["method"] == "tfm") & (decode["budget"] == 64) & (decode["prompt"] == 2) & (decode["repeat"] == 1)
    numbers = ["tokens", "rounds", "accepted_drafts_sum", "decode_ms", "lossless", "degenerate", *STAGE_COLUMNS]
    decode = decode.astype(dict.fromkeys(["lossless", "degenerate"], "boolean"))
    decode.loc[failed, numbers] = pd.NA
    decode.loc[failed, ["status", "reason"]] = ["failed", "out of memory"]
    table = table_speedup(decode)
    arm = pick(table, method="tfm", budget=64)
    assert set(arm["status"]) == {"failed: out of memory"}
    assert arm[["speedup", "speedup_low", "acceptance_ratio", "round_time_ratio"]].isna().all(axis=None)
    assert set(arm["rounds"]) == {7 * ROUNDS}
    assert set(arm["acceptance_length"]) == {4.0}
    assert set(table.drop(arm.index)["status"]) == {"ok"}
    ratios = table_acceptance_ratio(decode)
    assert set(pick(ratios, method="tfm", budget=64)["status"]) == {"failed: out of memory"}
    assert set(pick(ratios, method="tfm", budget=8)["status"]) == {"ok"}
    assert len(table_stage_times(decode)) == 2 * len(ARMS)
    assert set(pick(table_headline(decode), method="tfm")["budget"]) == {8}


def test_a_failed_baseline_leaves_no_speedup_of_the_others():
    decode = decode_rows()
    decode.loc[(decode["method"] == "ar") & (decode["repeat"] == 0), ["status", "reason"]] = ["skipped", "no time"]
    table = table_speedup(decode)
    plain = table["method"] == "ar"
    assert set(table[plain]["status"]) == {"skipped: no time"}
    assert set(table[plain]["tokens"]) == {4 * ROUNDS}
    assert set(table[~plain]["status"]) == {"baseline skipped: no time"}
    assert table["speedup"].isna().all()


@pytest.mark.parametrize(
    ("column", "other"), [("device", "another CPU"), ("threads", 4), ("torch", "2.14.1"), ("dtype", "bfloat16")]
)
def test_rows_of_different_hardware_are_not_compared(column, other):
    decode = decode_rows()
    moved = (decode["dataset"] == "code") & (decode["split"] == "test")
    across_datasets = table_headline(decode.assign(**{column: decode[column].mask(moved, other)}))
    pooled = across_datasets["dataset"] == "all"
    assert set(across_datasets[pooled]["status"]) == {f"mixed hardware: {column}"}
    assert across_datasets[pooled][["speedup", "noise_low", "acceptance_ratio"]].isna().all(axis=None)
    assert set(across_datasets[~pooled]["status"]) == {"ok"}
    repeats = table_speedup(decode.assign(**{column: decode[column].mask(decode["repeat"] == 1, other)}))
    assert set(repeats["status"]) == {f"mixed hardware: {column}"}


def test_arms_are_paired_by_prompt_in_whatever_order_their_rows_come():
    decode, keys = decode_rows(), ["dataset", "temperature", "method", "budget"]
    shuffled, ordered = (
        table_speedup(rows).sort_values(keys) for rows in (decode.sample(frac=1, random_state=0), decode)
    )
    numbers = ["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"]
    np.testing.assert_allclose(shuffled[numbers], ordered[numbers], rtol=1e-12)


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
        assert set(arm["status"]) == ({"not lossless"} if closed else {"ok"})
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


def test_a_mismatch_on_a_looping_prompt_leaves_no_speedup_in_any_selection():
    """Without the looping prompts the arm looks lossless; the gate is that of the whole group."""
    decode = decode_rows()
    hit = (decode["dataset"] == "math") & (decode["prompt"] == 2) & (decode["split"] == "test")
    looping = decode.assign(degenerate=decode["degenerate"] | hit)
    lossy = looping.assign(lossless=looping["lossless"] & ~(hit & (looping["method"] == "tfm")))
    headline = table_headline(lossy).query("dataset == 'math' and baseline == 'ar'").set_index("method")
    assert set(headline.loc["tfm", "prompt_selection"]) == {"all", "not_degenerate"}
    assert set(headline.loc["tfm", "status"]) == {"not lossless"}
    assert headline.loc["tfm", "speedup"].isna().all()
    assert headline.loc["ddtree", "speedup"].notna().all()
    ratios = table_acceptance_ratio(lossy).query("dataset == 'math' and method == 'tfm'")
    assert ratios["accepted_drafts_ratio"].isna().all()


def test_looping_dev_prompts_choose_no_budget():
    decode = decode_rows()
    fast = (
        (decode["split"] == "dev") & (decode["method"] == "ddtree") & (decode["budget"] == 64) & (decode["prompt"] == 0)
    )
    flattered = decode.assign(
        decode_ms=decode["decode_ms"].where(~fast, decode["decode_ms"] / 100),
        degenerate=decode["degenerate"] | ((decode["split"] == "dev") & (decode["prompt"] == 0)),
    )
    chosen = table_headline(flattered).query("method == 'ddtree'")["budget"].unique()
    assert list(chosen) == list(table_headline(decode).query("method == 'ddtree'")["budget"].unique())


def ranked(*rows: tuple[str, float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["group", "speedup", "speedup_low", "speedup_high"])


BEST = Best("speedup", by=("group",))


def best_by_definition(table: pd.DataFrame) -> set[int]:
    """Row by row: its low lies above the high of every other row of the group that has a value."""
    rows = list(table.dropna(subset="speedup").itertuples())
    others = {row: [other for other in rows if other.group == row.group and other is not row] for row in rows}
    return {
        row.Index for row in rows if others[row] and all(row.speedup_low > other.speedup_high for other in others[row])
    }


@pytest.mark.parametrize(
    ("rows", "bold"),
    [
        ([("a", 2.0, 1.8, 2.2), ("a", 1.5, 1.4, 1.79)], {0}),
        ([("a", 2.0, 1.8, 2.2), ("a", 1.5, 1.4, 1.8)], set()),
        ([("a", 2.0, 2.0, 2.0), ("a", 2.0, 2.0, 2.0), ("a", 1.0, 1.0, 1.0)], set()),
        ([("a", 1.0, 0.9, 1.1), ("a", 3.0, 2.9, 3.1), ("a", 2.0, 1.0, 2.95)], set()),
        ([("a", 1.0, 0.9, 2.95), ("a", 3.0, 2.9, 3.1), ("a", 2.0, 1.9, 2.1)], set()),
        ([("a", np.nan, np.nan, np.nan), ("a", 3.0, 2.9, 3.1), ("a", 2.0, 1.9, 2.1)], {1}),
        ([("a", np.nan, np.nan, np.nan), ("a", 3.0, 2.9, 3.1)], set()),
        ([("a", 3.0, np.nan, np.nan), ("a", 2.0, 1.9, 2.1)], set()),
        ([("a", 3.0, 2.9, 3.1), ("a", 2.0, np.nan, np.nan)], set()),
        ([("a", 3.0, 2.9, 3.1)], set()),
        ([("a", np.nan, np.nan, np.nan)], set()),
        ([("a", 3.0, 2.9, 3.1), ("b", 9.0, 8.0, 9.5), ("a", 2.0, 1.9, 2.1), ("b", 8.0, 7.0, 9.0)], {0}),
    ],
    ids=str,
)
def test_the_best_is_bold_exactly_where_its_interval_lies_above_all_others(rows, bold):
    assert BEST.rows(ranked(*rows)) == bold == best_by_definition(ranked(*rows))


def test_bold_rows_are_those_of_the_definition_on_random_tables():
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        values, below, above = rng.choice([1.0, 1.1, 1.5, 2.0, np.nan], 6), *rng.choice([0.05, 0.1, 0.3], (2, 6))
        table = ranked(*zip(rng.choice(["a", "b"], 6), values, values - below, values + above, strict=True))
        assert BEST.rows(table) == best_by_definition(table)
        found += len(BEST.rows(table))
    assert found > 20


def test_rows_are_found_by_place_whatever_the_index():
    table = ranked(("a", 2.0, 1.8, 2.2), ("a", 1.5, 1.4, 1.6)).set_axis([7, 3])
    assert BEST.rows(table) == {0}


def test_only_the_value_is_bold_and_only_where_people_read(tmp_path):
    table = ranked(("x_y", 1.5, 1.4, 1.6), ("x_y", 2.0, 1.8, 2.2))
    paths = {"csv": tmp_path / "t.csv", "markdown": tmp_path / "t.md", "latex": tmp_path / "t.tex"}
    write_table(table, **paths, best=BEST)
    assert paths["csv"].read_text() == table.to_csv(index=False)
    assert paths["markdown"].read_text().splitlines()[2:] == [
        "| x_y | 1.50 | 1.40 | 1.60 |",
        "| x_y | **2.00** | 1.80 | 2.20 |",
    ]
    assert r"x\_y & \textbf{2.00} & 1.80 & 2.20 \\" in paths["latex"].read_text()
    write_table(table, **paths)
    assert "**" not in paths["markdown"].read_text()
    assert "textbf" not in paths["latex"].read_text()


def test_the_winner_of_the_headline_is_bold_against_each_baseline_on_its_own():
    table = table_headline(decode_rows())
    best = Best("speedup", by=("dataset", "temperature", "baseline", "prompt_selection"))
    rows = table.iloc[sorted(best.rows(table))]
    assert len(rows)
    assert set(rows["baseline"]) == {"ar"}  # only tfm is compared with the other drafters: it beats nobody there
    for row in rows.itertuples():
        rivals = pick(table, dataset=row.dataset, temperature=row.temperature, baseline="ar")
        assert row.speedup == rivals["speedup"].max()


EXPECTED = Path(__file__).parents[2] / "results" / "expected"
BEST_OF = {"speedup": Best("speedup", by=("dataset", "temperature"))}
ROWS_IN_PRINT = 60  # TeX knows no page for thousands
DOCUMENT = r"""\documentclass{article}
\usepackage[paperwidth=200cm,paperheight=60cm,margin=1cm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
\begin{document}
%s
\end{document}
"""


def expected_tables() -> list[Path]:
    """All but the example tree, whose tokens are characters of any script."""
    return [path for path in sorted(EXPECTED.rglob("*.csv")) if path.stem != "example_tree"]


@pytest.mark.parametrize("path", expected_tables(), ids=lambda path: path.stem)
def test_the_latex_of_every_expected_table_is_plain_ascii_with_as_many_cells_as_columns(path):
    table = pd.read_csv(path)
    latex = to_latex(table)
    assert latex.isascii(), sorted({character for character in latex if not character.isascii()})
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(body) == len(table) + 1
    for line in body:
        assert len(re.findall(r"(?<!\\)&", line)) == len(table.columns) - 1
        without_commands = re.sub(r"\$\\?[A-Za-z-]+\$|\\text[a-z]+\{\}|\\dots\{\}|\\[&%$#_{}]", "", line)
        assert not re.search(r"[%$#_{}~^]", without_commands), line


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_builds_all_expected_tables(tmp_path):
    tables = [to_latex(pd.read_csv(path).head(ROWS_IN_PRINT), BEST_OF.get(path.stem)) for path in expected_tables()]
    (tmp_path / "all.tex").write_text(DOCUMENT % "\n\\clearpage\n".join(tables), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 0


def test_every_character_that_has_a_latex_name_becomes_ascii():
    text = "".join(LATEX_ESCAPES)
    assert escape_latex(text).isascii()
    assert "×" in text
