"""A cell on a fake engine of known speed: what is run in which order, what is recorded, what is refused."""

import re
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.tfm_bench.fake_cells import PROMPTS, settings_for
from tfm_bench.config import METHODS
from tfm_bench.errors import UserError
from tfm_bench.measure.foreign_load import LoadMeter
from tfm_bench.measure.lossless import first_divergence, is_degenerate
from tfm_bench.measure.records import decode_table, read_records
from tfm_bench.measure.rounds import read_rounds, rounds_path

ARMS = [("ar", 0, 0), ("dflash_chain", 8, 0), ("dflash_chain", 15, 0)]
ARMS += [("ddtree", 8, 0), ("ddtree", 64, 0), ("tfm", 8, 1), ("tfm", 64, 4)]
RUNS = [*ARMS[:4], ("ar", 0, 0), *ARMS[4:]]


def test_every_prompt_is_measured_with_every_arm(cells, stack_folder):
    output = stack_folder / "raw" / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), output)
    records = read_records(output)
    assert [(r.method, r.budget, r.expansion_width) for r in records] == RUNS * PROMPTS
    assert [r.control for r in records] == ([False] * 4 + [True] + [False] * 3) * PROMPTS
    assert [r.prompt for r in records] == [index for index in range(PROMPTS) for _ in RUNS]
    assert all(r.status == "ok" and r.lossless and r.first_divergence is None and r.tokens == 40 for r in records)
    assert {r.verify_width for r in records if r.method == "tfm"} == {9, 65}
    assert {(r.rounds, r.accepted_drafts_sum, r.max_depth) for r in records if r.method == "tfm"} == {(10, 30, 3)}
    assert {(r.accepted_drafts, r.acceptance_length) for r in records if r.method == "ar"} == {(0.0, 1.0)}


def test_every_record_has_its_rounds_beside_it(cells, stack_folder):
    output = stack_folder / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), output)
    records, rounds = read_records(output), read_rounds(rounds_path(output))
    place = {"prompt", "method", "budget", "expansion_width", "variant", "control"}
    assert [r.model_dump(include=place) for r in records] == [r.model_dump(include=place) for r in rounds]
    for record, its in zip(records, rounds, strict=True):
        assert sum(its.accepted) + record.rounds == record.tokens
        assert set(its.verify_width) == {record.verify_width}
        assert all(
            spine <= accepted <= depth
            for spine, accepted, depth in zip(its.spine, its.accepted, its.depth, strict=True)
        )
        assert (its.stage_ms is None) == record.control
        if its.stage_ms:
            assert {stage: sum(times) for stage, times in its.stage_ms.items()} == record.stage_ms


def test_everything_is_warm_before_anything_is_timed(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    warm = [call for call in cells.calls if call.max_new_tokens < 41]
    assert cells.calls[: len(warm)] == warm
    assert {(call.arm.method, call.arm.budget, call.arm.expansion_width) for call in warm} == set(ARMS)
    assert set(Counter((call.arm, call.staged) for call in warm if call.staged).values()) == {1}
    assert set(Counter((call.arm, call.staged) for call in warm if not call.staged).values()) == {2}


def test_what_the_first_run_of_an_arm_costs_is_told_apart(cells, stack_folder, monkeypatch, capsys):
    honest, seen = cells.runs.generate, set()

    def compiles(stack, prompt_ids, arm, **options):
        if arm not in seen:
            seen.add(arm)
            time.sleep(0.02)
        return honest(stack, prompt_ids, arm, **options)

    monkeypatch.setattr(cells.runs, "generate", compiles)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    origin = read_records(stack_folder / "cell.jsonl")[0].provenance
    assert 7 * 0.015 < origin.jit_s <= origin.warmup_s
    assert re.search(
        r"math T=1 float32 repeat 0: warm after 0\.[1-9] s, 0\.[1-9] s of them in first", capsys.readouterr().err
    )


def test_stage_times_come_from_a_second_run_of_the_reported_split(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    measured = [call for call in cells.calls if call.max_new_tokens == 41 and call.prompt == "prompt 1"]
    assert [call.staged for call in measured] == [False] * 8 + [True] * 7
    assert all(record.stage_ms or record.control for record in read_records(stack_folder / "cell.jsonl"))
    for other in (settings_for(stack_folder, split="dev"), settings_for(stack_folder, repeat=1)):
        cells.calls.clear()
        cells.decode_cell(other, stack_folder / "other.jsonl")
        assert not any(call.staged for call in cells.calls)
        assert all(record.stage_ms is None for record in read_records(stack_folder / "other.jsonl"))


def test_stage_times_are_of_the_first_prompts(cells, stack_folder, monkeypatch):
    monkeypatch.setattr(cells.runs, "STAGED_PROMPTS", 2)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    staged = {record.prompt for record in read_records(stack_folder / "cell.jsonl") if record.stage_ms}
    assert staged == {0, 1}


def test_order_is_mirrored_within_pairs_and_rotated_between_them(cells):
    arms = list("abcd")
    orders = ["".join(cells.runs.run_order(arms, prompt, 0)) for prompt in range(8)]
    assert orders == ["abcd", "dcba", "bcda", "adcb", "cdab", "badc", "dabc", "cbad"]
    for place in range(4):
        assert Counter(order[place] for order in orders) == dict.fromkeys("abcd", 2)
    assert cells.runs.run_order(arms, 0, 1) == cells.runs.run_order(arms, 2, 0)


def test_repeats_decode_the_same_text(cells, stack_folder):
    hashes = []
    for repeat in (0, 1):
        cells.decode_cell(settings_for(stack_folder, repeat=repeat), stack_folder / "cell.jsonl")
        hashes.append([record.tokens_sha256 for record in read_records(stack_folder / "cell.jsonl")])
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == PROMPTS


def test_other_text_is_recorded_with_its_place(cells, stack_folder, monkeypatch):
    honest = cells.runs.generate

    def tampered(stack, prompt_ids, arm, **options):
        generation = honest(stack, prompt_ids, arm, **options)
        if arm.method == "tfm" and arm.budget == 64:
            generation.tokens[7] += 1
        return generation

    monkeypatch.setattr(cells.runs, "generate", tampered)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    for record in read_records(stack_folder / "cell.jsonl"):
        wrong = (record.method, record.budget) == ("tfm", 64)
        assert (record.lossless, record.first_divergence) == ((False, 7) if wrong else (True, None))


def test_the_control_stands_half_a_turn_away_from_ar_at_every_prompt(cells):
    for arms in (2, 7, 8):
        runs = cells.runs.runs_of([cells.AR, *[cells.Arm("ddtree", budget) for budget in range(1, arms)]])
        for prompt in range(2 * len(runs)):
            order = cells.runs.run_order(runs, prompt, 0)
            first, second = (index for index, run in enumerate(order) if run.arm == cells.AR)
            assert {second - first, len(runs) - (second - first)} == {len(runs) // 2, (len(runs) + 1) // 2}


def test_an_arm_that_raises_leaves_its_reason_and_the_cell_goes_on(cells, stack_folder, monkeypatch, capsys):
    honest = cells.runs.generate
    errors = {"ddtree": RuntimeError("no memory\nat all"), "tfm": NotImplementedError("no such kernel")}

    def fails(stack, prompt_ids, arm, **options):
        if arm.budget == 64:
            raise errors[arm.method]
        return honest(stack, prompt_ids, arm, **options)

    monkeypatch.setattr(cells.runs, "generate", fails)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    records = read_records(stack_folder / "cell.jsonl")
    wide = {(r.method, r.status, r.reason, r.tokens, r.lossless) for r in records if r.budget == 64}
    assert wide == {
        ("ddtree", "failed", "RuntimeError: no memory", None, None),
        ("tfm", "unsupported", "NotImplementedError: no such kernel", None, None),
    }
    assert {r.status for r in records if r.budget != 64} == {"ok"}
    said = capsys.readouterr().err
    assert "ddtree 64 has no number on 3 of 3 prompts (RuntimeError: no memory)" in said
    assert [r.accepted for r in read_rounds(stack_folder / "cell.rounds.jsonl") if r.budget == 64] == [[]] * 6
    table = decode_table([stack_folder / "cell.jsonl"])
    assert table["tokens"].dtype == "Int64"
    assert table.loc[table["budget"] == 64, "tokens"].isna().all()


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 0.25), ("float32", None)])
def test_bf16_divergence_comes_with_the_gap_of_the_choice(cells, stack_folder, monkeypatch, dtype, expected):
    honest, asked = cells.runs.generate, []

    def tampered(stack, prompt_ids, arm, **options):
        generation = honest(stack, prompt_ids, arm, **options)
        if arm.budget == 64:
            generation.tokens[7] += 1
        return generation

    def gap(stack, prompt_ids, tokens, *, expected, found, temperature, seed):
        asked.append((bytes(prompt_ids), len(tokens), found - expected, temperature, seed))
        return 0.25

    monkeypatch.setattr(cells.runs, "generate", tampered)
    monkeypatch.setattr(cells.runs, "logit_gap", gap)
    settings = settings_for(stack_folder)
    cells.decode_cell(
        settings.model_copy(update={"stack": settings.stack.model_copy(update={"dtype": dtype})}),
        stack_folder / "cell.jsonl",
    )
    for record in read_records(stack_folder / "cell.jsonl"):
        assert record.logit_gap == (expected if record.budget == 64 else None)
    assert asked == ([(b"prompt %d" % prompt, 7, 1, 1.0, prompt) for prompt in (0, 0, 1, 1, 2, 2)] if expected else [])


def test_a_text_that_only_ends_early_has_no_gap(cells, stack_folder, monkeypatch):
    honest = cells.runs.generate

    def shorter(stack, prompt_ids, arm, **options):
        generation = honest(stack, prompt_ids, arm, **options)
        if arm.budget == 64:
            del generation.tokens[7:]
        return generation

    monkeypatch.setattr(cells.runs, "generate", shorter)
    settings = settings_for(stack_folder)
    stack = settings.stack.model_copy(update={"dtype": "bfloat16"})
    cells.decode_cell(settings.model_copy(update={"stack": stack}), stack_folder / "cell.jsonl")
    wide = [r for r in read_records(stack_folder / "cell.jsonl") if r.budget == 64]
    assert {(r.first_divergence, r.logit_gap) for r in wide} == {(7, None)}


def test_what_plain_decoding_raises_ends_the_cell(cells, stack_folder, monkeypatch):
    def fails(stack, prompt_ids, arm, **options):
        raise RuntimeError("kernel")

    monkeypatch.setattr(cells.runs, "generate", fails)
    with pytest.raises(RuntimeError, match="kernel"):
        cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")


def test_stage_times_of_other_rounds_are_not_kept(cells, stack_folder, monkeypatch):
    honest = cells.runs.generate

    def staged_differs(stack, prompt_ids, arm, *, max_new_tokens, staged, **options):
        return honest(stack, prompt_ids, arm, max_new_tokens=max_new_tokens - staged, staged=staged, **options)

    monkeypatch.setattr(cells.runs, "generate", staged_differs)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    assert not any(record.stage_ms for record in read_records(stack_folder / "cell.jsonl"))


def test_foreign_load_is_what_others_keep_busy(monkeypatch, tmp_path):
    stat, clock = tmp_path / "stat", iter((10.0, 12.0))
    own = iter(((1.0, 0.5, 0.0, 0.0, 9.0), (2.0, 1.0, 0.0, 0.0, 9.0)))
    posix = SimpleNamespace(times=lambda: next(own), sysconf=lambda name: 100)
    monkeypatch.setattr("tfm_bench.measure.foreign_load.STAT", stat)
    monkeypatch.setattr("tfm_bench.measure.foreign_load.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("tfm_bench.measure.foreign_load.os", posix)
    stat.write_text("cpu  100 0 100 5000 70 0 0 0 0 0\ncpu0 1 2 3\n")
    meter = LoadMeter()
    stat.write_text("cpu  250 10 180 9000 900 5 5 50 77 0\ncpu0 1 2 3\n")
    assert meter.foreign_load() == pytest.approx((3.0 - 1.5) / 2)


def test_no_foreign_load_is_told_of_an_instant(cells):
    assert LoadMeter().foreign_load() is None


def test_each_prompt_has_its_own_load_and_a_busy_one_is_said_once(cells, stack_folder, monkeypatch, capsys):
    loads = [0.29, 0.31, None]
    meters = iter(loads)
    monkeypatch.setattr(LoadMeter, "foreign_load", lambda meter: next(meters))
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    said = [line for line in capsys.readouterr().err.splitlines() if "cores busy" in line]
    effect = "other processes kept 0.3 cores busy; its times may be too long"
    assert said == [f"test math T=1 float32 repeat 0, prompt 1 (p1): {effect}"]
    assert [r.provenance.foreign_load for r in read_records(stack_folder / "cell.jsonl")][::8] == loads


def test_the_load_of_a_prompt_is_measured_from_its_own_start(cells, stack_folder, monkeypatch):
    made = []
    monkeypatch.setattr(cells.runs, "LoadMeter", lambda: made.append(len(cells.calls)) or LoadMeter())
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    first = [index for index, call in enumerate(cells.calls) if call.max_new_tokens == 41]
    assert made == [first[0] + 15 * prompt for prompt in range(PROMPTS)]


def test_records_become_one_table(cells, stack_folder):
    paths = []
    for split in ("test", "dev"):
        paths.append(stack_folder / f"{split}.jsonl")
        cells.decode_cell(settings_for(stack_folder, split=split), paths[-1])
    table = decode_table(paths)
    assert len(table) == 2 * 8 * PROMPTS
    assert list(table["split"]) == sorted(table["split"])
    assert list(table["method"].unique()) == list(METHODS)
    tfm = table[table["method"] == "tfm"]
    assert set(tfm["rounds"]) == {10}
    assert set(tfm["accepted_drafts_sum"]) == {30}
    assert set(tfm["decode_ms"]) == {160.0}
    assert tfm["first_divergence"].isna().all()
    assert table.loc[table["split"] == "dev", "draft_ms"].isna().all()
    assert decode_table(reversed(paths)).equals(table)


def test_too_few_prompts_is_one_line_and_leaves_nothing(cells, stack_folder):
    with pytest.raises(UserError, match=r"math\.test\.jsonl: found 3 prompts; prompts\.test asks for 4"):
        cells.decode_cell(settings_for(stack_folder, prompts=4), stack_folder / "raw" / "cell.jsonl")
    assert not (stack_folder / "raw").exists()


def test_a_full_disk_is_noticed_before_measuring(cells, stack_folder, monkeypatch):
    usage = SimpleNamespace(free=49_000_000)
    monkeypatch.setattr("tfm_bench.measure.files.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match="49 MB free"):
        cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    assert not cells.calls


def test_a_failure_while_measuring_leaves_no_file(cells, stack_folder, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("kernel")

    monkeypatch.setattr(cells, "measure_prompt", fails)
    with pytest.raises(RuntimeError):
        cells.decode_cell(settings_for(stack_folder), stack_folder / "raw" / "cell.jsonl")
    assert not list(stack_folder.glob("raw/*"))


def test_a_damaged_record_names_file_and_line(cells, stack_folder):
    output = stack_folder / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), output)
    output.write_text(output.read_text() + '{"prompt": 0')
    with pytest.raises(UserError, match=rf"cell\.jsonl, line {8 * PROMPTS + 1}: not a record"):
        read_records(output)


def test_a_record_says_where_it_comes_from(cells, stack_folder):
    settings = settings_for(stack_folder)
    cells.decode_cell(settings, stack_folder / "cell.jsonl")
    record = read_records(stack_folder / "cell.jsonl")[0]
    assert record.settings == settings
    assert record.provenance.threads == 1
    assert record.provenance.versions["torch"][0].isdigit()
    assert record.provenance.cpu
    assert record.provenance.started_at <= record.provenance.finished_at
    assert record.provenance.gdn_path == "fake:fused"
    assert record.provenance.family_versions["measure.cells"] == cells.VERSION
    assert record.provenance.gpu is None
    assert [r.provenance.seed for r in read_records(stack_folder / "cell.jsonl")][::8] == [0, 1, 2]
    assert record.gdn_implementation == record.weaver_implementation == "fake"
    assert len(record.checkpoint_sha256) == len(record.prompts_sha256) == 64


def test_other_weights_change_the_checkpoint_hash(cells, stack_folder):
    before = cells.checkpoint_sha256(stack_folder)
    (stack_folder / "weaver" / "model.safetensors").write_bytes(b"other")
    assert cells.checkpoint_sha256(stack_folder) != before


def test_a_record_holds_no_nan(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    assert "NaN" not in (stack_folder / "cell.jsonl").read_text()


@pytest.mark.parametrize(
    ("tokens", "reference", "expected"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2, 3], [1, 2], 2), ([], [], None)],
)
def test_first_divergence(tokens, reference, expected):
    assert first_divergence(tokens, reference) == expected


def test_loops_are_degenerate_and_text_is_not():
    text = list(range(100))
    assert not is_degenerate(text)
    assert not is_degenerate([])
    assert not is_degenerate(text + [1, 2, 3, 4] * 7)
    assert is_degenerate(text + [1, 2, 3, 4, 5] * 9)
    assert is_degenerate([7, 8] * 6)


def test_all_prompts_of_a_file_are_measured_where_all_are_asked_for(cells, stack_folder):
    whole = settings_for(stack_folder).model_copy(update={"prompts": "all"})
    cells.decode_cell(whole, stack_folder / "cell.jsonl")
    counted, asked = (len({record.prompt for record in read_records(stack_folder / "cell.jsonl")}), PROMPTS)
    assert counted == asked


def test_prompts_take_the_form_that_the_stack_asks_for(cells, stack_folder, monkeypatch):
    asked = []

    def encode(_tokenizer, prompt, **form):
        asked.append(form)
        return list(prompt.text.encode())

    monkeypatch.setattr("tfm_bench.prompts.datasets.encode_prompt", encode)
    settings = settings_for(stack_folder, prompts=1)
    form = {"reasoning": True, "chat_format": "chatml"}
    changed = settings.model_copy(update={"stack": settings.stack.model_copy(update=form)})
    cells.decode_cell(changed, stack_folder / "cell.jsonl")
    assert asked
    assert all(found == form for found in asked)
