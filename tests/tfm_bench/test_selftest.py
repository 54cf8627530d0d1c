"""The whole measuring layer on an engine of known speed and acceptance: the tables give back what was put in."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.tfm_bench.fake_cells import PROMPTS, settings_for
from tfm_bench.generation import Generation, Round
from tfm_bench.measure.records import decode_table, read_decode_table
from tfm_bench.report.speedup import table_headline, table_speedup

TOKENS = 40  # per prompt and arm, without the prefill's
CONTROL = 0.96  # of the time of `ar`, when it is measured again
LOOPING = 2  # the prompt whose text is a loop

# (method, budget): accepted drafts per round by prompt, milliseconds per round; all divide TOKENS evenly
ENGINE = {
    ("ar", 0): ((0, 0, 0), 8.0),
    ("dflash_chain", 8): ((1, 3, 0), 10.0),
    ("dflash_chain", 15): ((1, 1, 1), 12.0),
    ("ddtree", 8): ((1, 3, 1), 9.0),
    ("ddtree", 64): ((3, 3, 1), 30.0),
    ("tfm", 8): ((3, 4, 1), 10.0),
    ("tfm", 64): ((4, 7, 1), 16.0),
}
LOSSY, FAILING = ("tfm", 8), ("ddtree", 8)  # at prompt 1 and at prompt 0


def rounds_of(arm: tuple[str, int], prompts: range | list[int] = range(PROMPTS)) -> int:
    return sum(TOKENS // (ENGINE[arm][0][prompt] + 1) for prompt in prompts)


def slowness(prompt: int) -> float:
    return 1 + prompt / 2


def milliseconds(arm: tuple[str, int], prompts: range | list[int] = range(PROMPTS)) -> float:
    return sum(rounds_of(arm, [prompt]) * ENGINE[arm][1] * slowness(prompt) for prompt in prompts)


def generate(stack, prompt_ids, arm, *, temperature, seed, max_new_tokens, staged=False) -> Generation:
    prompt, key = int(bytes(prompt_ids).decode().split()[1]), (arm.method, arm.budget)
    drafts, round_ms = ENGINE[key][0][prompt], ENGINE[key][1] * slowness(prompt)
    timed = max_new_tokens == TOKENS + 1
    if key == FAILING and prompt == 0 and timed:
        raise RuntimeError("out of luck")
    tokens = [(7 if prompt == LOOPING else 100 * prompt + place) for place in range(max_new_tokens)]
    if key == LOSSY and prompt == 1:
        tokens[30 % max_new_tokens] += 1
    stage_ms = dict.fromkeys(("draft", "tree", "verify", "accept", "commit", "other"), round_ms / 8) if staged else None
    rounds = [Round(drafts, arm.budget + 1, drafts, 0, stage_ms)] * ((max_new_tokens - 1) // (drafts + 1))
    return Generation(tokens, rounds, arm.budget + 1, 5.0, len(rounds) * round_ms)


@pytest.fixture
def decode(cells, stack_folder, monkeypatch) -> pd.DataFrame:
    """results/decode.csv of two repeats of the test split and one of dev."""
    attempt = cells.runs._attempt

    def with_noise(cell, ids, run, **how):
        outcome = attempt(cell, ids, run, **how)
        return replace(outcome, decode_ms=CONTROL * outcome.decode_ms) if run.control else outcome

    monkeypatch.setattr(cells.runs, "generate", generate)
    monkeypatch.setattr(cells.runs, "_attempt", with_noise)
    files = []
    for split, repeat in (("dev", 0), ("test", 0), ("test", 1)):
        files.append(stack_folder / "raw" / f"{split}.{repeat}.jsonl")
        cells.decode_cell(settings_for(stack_folder, split=split, repeat=repeat), files[-1])
    decode_table(files).to_csv(stack_folder / "decode.csv", index=False)
    return read_decode_table(stack_folder / "decode.csv")


@pytest.fixture
def rows(decode) -> dict[tuple[str, int], SimpleNamespace]:
    """The speedup table by arm."""
    table = table_speedup(decode)
    assert list(zip(table["method"], table["budget"], strict=True)) == list(ENGINE)
    return {(row["method"], row["budget"]): SimpleNamespace(**row) for row in table.to_dict("records")}


def test_speed_and_acceptance_come_back_to_the_digit(rows):
    for arm in set(ENGINE) - {LOSSY, FAILING}:
        row, repeats = rows[arm], 2
        speedup = milliseconds(("ar", 0)) / milliseconds(arm)
        acceptance = PROMPTS * TOKENS / rounds_of(arm)
        assert (row.tokens, row.rounds) == (repeats * PROMPTS * TOKENS, repeats * rounds_of(arm))
        assert row.tokens_per_second == pytest.approx(1000 * PROMPTS * TOKENS / milliseconds(arm), rel=1e-12)
        assert row.acceptance_length == pytest.approx(acceptance, rel=1e-12)
        assert row.accepted_drafts == pytest.approx(acceptance - 1, rel=1e-12, abs=1e-12)
        assert row.acceptance_ratio == pytest.approx(acceptance, rel=1e-12)
        assert row.speedup == pytest.approx(speedup, rel=1e-12)
        assert row.round_time_ratio == pytest.approx(speedup / acceptance, rel=1e-12)
        assert row.round_time_ms == pytest.approx(milliseconds(arm) / rounds_of(arm), rel=1e-12)
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.status == "ok"
    assert rows["tfm", 64].speedup > 1.5 > 1 > rows["ddtree", 64].speedup


def test_an_arm_that_never_varies_has_an_interval_without_width(rows):
    row = rows["dflash_chain", 15]
    assert [row.speedup_low, row.speedup_high] == pytest.approx([2 * 8 / 12] * 2, rel=1e-12)
    assert rows["tfm", 64].speedup_high > rows["tfm", 64].speedup_low + 0.1


def test_the_noise_is_that_of_the_second_run_of_ar(rows):
    for row in rows.values():
        assert [row.noise_low, row.noise_high] == pytest.approx([1 / CONTROL] * 2, rel=1e-12)


def test_a_lossy_and_a_failing_arm_lose_their_speedup_and_say_why(rows):
    lossy, failing = rows[LOSSY], rows[FAILING]
    assert (lossy.status, lossy.lossless_prompts, lossy.prompts) == ("not lossless", PROMPTS - 1, PROMPTS)
    assert failing.status == "failed: RuntimeError: out of luck"
    for row in (lossy, failing):
        for ratio in ("speedup", "acceptance_ratio", "round_time_ratio"):
            assert pd.isna([getattr(row, ratio), getattr(row, f"{ratio}_low", None)]).all()
    assert lossy.tokens_per_second == pytest.approx(1000 * PROMPTS * TOKENS / milliseconds(LOSSY), rel=1e-12)


def test_the_looping_prompt_is_counted_and_left_out_of_the_second_headline(rows, decode):
    assert {row.degenerate_prompts for row in rows.values()} == {1}
    table = table_headline(decode).query("method == 'tfm' and baseline == 'ar' and dataset == 'math'")
    every, clean = (table[table["prompt_selection"] == name].iloc[0] for name in ("all", "not_degenerate"))
    assert (every["budget"], every["prompts"], every["degenerate_prompts"]) == (64, PROMPTS, 1)
    assert (clean["budget"], clean["prompts"], clean["degenerate_prompts"]) == (64, PROMPTS - 1, 0)
    kept = [prompt for prompt in range(PROMPTS) if prompt != LOOPING]
    speedup = milliseconds(("ar", 0), kept) / milliseconds(("tfm", 64), kept)
    assert clean["speedup"] == pytest.approx(speedup, rel=1e-12)


def test_the_place_where_the_text_differs_is_found(decode):
    lossy = decode[(decode["method"] == LOSSY[0]) & (decode["budget"] == LOSSY[1]) & (decode["split"] == "test")]
    assert set(lossy.loc[lossy["prompt"] == 1, "first_divergence"]) == {30}
    assert lossy.loc[lossy["prompt"] != 1, "first_divergence"].isna().all()
