"""A cell on a fake engine of known speed: what is run in which order, what is recorded, what is refused."""

import importlib
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfm_bench.config import METHODS, cell_settings, load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.measure.lossless import first_divergence, is_degenerate
from tfm_bench.measure.records import decode_table, read_records

ROOT = Path(__file__).parents[2]
FAKE_ENGINE = ROOT / "tests" / "workflow" / "fake_engine.py"
PROMPTS = 3


@pytest.fixture
def stack_folder(tmp_path):
    for part in ("target", "drafter", "weaver"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "model.safetensors").write_bytes(part.encode())
    (tmp_path / "prompts").mkdir()
    lines = [json.dumps({"id": f"p{i}", "text": f"prompt {i}", "kind": "text"}) for i in range(PROMPTS)]
    for split in ("dev", "test"):
        (tmp_path / "prompts" / f"math.{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def cells(monkeypatch):
    """tfm_bench.measure.cells, freshly imported on top of the fake engine; every generate call is logged."""
    spec = importlib.util.spec_from_file_location("tfm_bench.engine", FAKE_ENGINE)
    fake = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tfm_bench.engine", fake)
    spec.loader.exec_module(fake)
    calls = []
    original = fake.generate

    def logged(stack, prompt_ids, arm, **options):
        calls.append(SimpleNamespace(prompt=bytes(prompt_ids).decode(), arm=arm, **options))
        return original(stack, prompt_ids, arm, **options)

    fake.generate = logged
    monkeypatch.delitem(sys.modules, "tfm_bench.measure.cells", raising=False)
    module = importlib.import_module("tfm_bench.measure.cells")
    monkeypatch.setitem(sys.modules, "tfm_bench.measure.cells", module)
    module.calls = calls
    return module


def settings_for(stack_folder, *, split="test", repeat=0, prompts=PROMPTS):
    defaults = read_yaml(ROOT / "config" / "default.yaml")
    changed = {
        "stack": defaults["stack"] | {"path": str(stack_folder), "threads": 1},
        "prompts": {"dev": prompts, "test": prompts},
        "budgets": [8, 64],
        "max_new_tokens": 41,
    }
    config = load_config(defaults | changed)
    return cell_settings(config, split=split, dataset="math", temperature_hundredths=100, repeat=repeat)


def test_every_prompt_is_measured_with_every_arm(cells, stack_folder):
    output = stack_folder / "raw" / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), output)
    records = read_records(output)
    arms = [("ar", 0, 0), ("dflash_chain", 8, 0), ("dflash_chain", 15, 0)]
    arms += [("ddtree", 8, 0), ("ddtree", 64, 0), ("tfm", 8, 1), ("tfm", 64, 4)]
    assert [(r.method, r.budget, r.expansion_width) for r in records] == arms * PROMPTS
    assert [r.prompt for r in records] == [index for index in range(PROMPTS) for _ in arms]
    assert all(r.lossless and r.first_divergence is None and r.tokens == 40 for r in records)
    assert {r.verify_width for r in records if r.method == "tfm"} == {9, 65}
    assert {len(r.accepted) for r in records if r.method == "tfm"} == {10}


def test_everything_is_warm_before_anything_is_timed(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    warm = [call for call in cells.calls if call.max_new_tokens < 41]
    assert cells.calls[: len(warm)] == warm
    assert Counter((call.arm, call.staged) for call in warm) == {
        (call.arm, staged): 1 for call in warm for staged in (False, True)
    }


def test_stage_times_come_from_a_second_run_of_the_reported_split(cells, stack_folder):
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    measured = [call for call in cells.calls if call.max_new_tokens == 41 and call.prompt == "prompt 1"]
    assert [call.staged for call in measured] == [False] * 7 + [True] * 7
    assert all(record.stage_ms for record in read_records(stack_folder / "cell.jsonl"))
    for other in (settings_for(stack_folder, split="dev"), settings_for(stack_folder, repeat=1)):
        cells.calls.clear()
        cells.decode_cell(other, stack_folder / "other.jsonl")
        assert not any(call.staged for call in cells.calls)
        assert all(record.stage_ms is None for record in read_records(stack_folder / "other.jsonl"))


def test_stage_times_are_of_the_first_prompts(cells, stack_folder, monkeypatch):
    monkeypatch.setattr(cells, "STAGED_PROMPTS", 2)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    staged = {record.prompt for record in read_records(stack_folder / "cell.jsonl") if record.stage_ms}
    assert staged == {0, 1}


def test_order_is_mirrored_within_pairs_and_rotated_between_them(cells):
    arms = list("abcd")
    orders = ["".join(cells.arm_order(arms, prompt, 0)) for prompt in range(8)]
    assert orders == ["abcd", "dcba", "bcda", "adcb", "cdab", "badc", "dabc", "cbad"]
    for place in range(4):
        assert Counter(order[place] for order in orders) == dict.fromkeys("abcd", 2)
    assert cells.arm_order(arms, 0, 1) == cells.arm_order(arms, 2, 0)


def test_repeats_decode_the_same_text(cells, stack_folder):
    hashes = []
    for repeat in (0, 1):
        cells.decode_cell(settings_for(stack_folder, repeat=repeat), stack_folder / "cell.jsonl")
        hashes.append([record.tokens_sha256 for record in read_records(stack_folder / "cell.jsonl")])
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == PROMPTS


def test_other_text_is_recorded_with_its_place(cells, stack_folder, monkeypatch):
    honest = cells.generate

    def tampered(stack, prompt_ids, arm, **options):
        generation = honest(stack, prompt_ids, arm, **options)
        if arm.method == "tfm" and arm.budget == 64:
            generation.tokens[7] += 1
        return generation

    monkeypatch.setattr(cells, "generate", tampered)
    cells.decode_cell(settings_for(stack_folder), stack_folder / "cell.jsonl")
    for record in read_records(stack_folder / "cell.jsonl"):
        wrong = (record.method, record.budget) == ("tfm", 64)
        assert (record.lossless, record.first_divergence) == ((False, 7) if wrong else (True, None))


def test_records_become_one_table(cells, stack_folder):
    paths = []
    for split in ("test", "dev"):
        paths.append(stack_folder / f"{split}.jsonl")
        cells.decode_cell(settings_for(stack_folder, split=split), paths[-1])
    table = decode_table(paths)
    assert len(table) == 2 * 7 * PROMPTS
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

    monkeypatch.setattr(cells, "_measure_prompt", fails)
    with pytest.raises(RuntimeError):
        cells.decode_cell(settings_for(stack_folder), stack_folder / "raw" / "cell.jsonl")
    assert not list(stack_folder.glob("raw/*"))


def test_a_damaged_record_names_file_and_line(cells, stack_folder):
    output = stack_folder / "cell.jsonl"
    cells.decode_cell(settings_for(stack_folder), output)
    output.write_text(output.read_text() + '{"prompt": 0')
    with pytest.raises(UserError, match=rf"cell\.jsonl, line {7 * PROMPTS + 1}: not a record"):
        read_records(output)


def test_a_record_says_where_it_comes_from(cells, stack_folder):
    settings = settings_for(stack_folder)
    cells.decode_cell(settings, stack_folder / "cell.jsonl")
    record = read_records(stack_folder / "cell.jsonl")[0]
    assert record.settings == settings
    assert record.provenance.threads == 1
    assert record.provenance.versions["torch"][0].isdigit()
    assert record.provenance.cpu
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
