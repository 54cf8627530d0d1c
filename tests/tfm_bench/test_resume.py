"""A cell that was stopped goes on after its last complete prompt, and only on the same settings and code."""

import json
import sys
from dataclasses import replace

import pytest

from tests.tfm_bench.fake_cells import PROMPTS, settings_for
from tfm_bench.errors import UserError
from tfm_bench.measure.partial import partial_path, sources_sha256
from tfm_bench.measure.records import read_records
from tfm_bench.measure.rounds import read_rounds, rounds_path

RUNS = 8


@pytest.fixture
def output(stack_folder):
    return stack_folder / "raw" / "cell.jsonl"


@pytest.fixture
def stopped(cells, stack_folder, output, monkeypatch):
    """A cell that was interrupted in the middle of its second prompt."""
    honest = cells.runs.generate

    def interrupted(stack, prompt_ids, arm, **options):
        if bytes(prompt_ids) == b"prompt 1" and arm.method == "tfm":
            raise KeyboardInterrupt
        return honest(stack, prompt_ids, arm, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cells.runs, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cells.decode_cell(settings_for(stack_folder), output)
    assert not output.exists()
    cells.calls.clear()
    return partial_path(output)


def measured_prompts(cells):
    """Prompts that were decoded beyond the warm-up."""
    return {call.prompt for call in cells.calls if call.max_new_tokens == 41}


def what_was_measured(path):
    """Records and rounds apart from origin and times of day."""
    records = [record.model_dump(exclude={"provenance"}) for record in read_records(path)]
    return records, read_rounds(rounds_path(path))


def test_it_goes_on_after_the_last_complete_prompt(cells, stack_folder, output, stopped, capsys):
    kept = json.loads(stopped.read_text().splitlines()[1])["records"]
    cells.decode_cell(settings_for(stack_folder), output)
    assert measured_prompts(cells) == {"prompt 1", "prompt 2"}
    assert "continued after 1 prompts" in capsys.readouterr().err
    assert [record.model_dump(mode="json") for record in read_records(output)[:RUNS]] == kept
    unbroken = stack_folder / "unbroken.jsonl"
    cells.decode_cell(settings_for(stack_folder), unbroken)
    assert what_was_measured(output) == what_was_measured(unbroken)
    assert sorted(path.name for path in output.parent.iterdir()) == ["cell.jsonl", "cell.rounds.jsonl"]


@pytest.mark.parametrize("lines", [0, 1])
def test_a_file_without_a_complete_prompt_is_begun_anew(cells, stack_folder, output, stopped, lines):
    header = stopped.read_bytes().splitlines(keepends=True)[:lines]
    stopped.write_bytes(b"".join(header) + b'{"rec')
    cells.decode_cell(settings_for(stack_folder), output)
    assert measured_prompts(cells) == {f"prompt {index}" for index in range(PROMPTS)}
    assert len(read_records(output)) == PROMPTS * RUNS


@pytest.mark.parametrize("torn", [b"", b'{"records": [{"prom', b'{"records": [], "rounds": []}', b"\xff\x00\n"])
def test_a_torn_line_is_dropped_and_a_second_stop_loses_no_more(
    cells, stack_folder, output, stopped, monkeypatch, torn
):
    stopped.write_bytes(stopped.read_bytes() + torn)
    honest = cells.runs.generate

    def interrupted(stack, prompt_ids, arm, **options):
        if bytes(prompt_ids) == b"prompt 2":
            raise KeyboardInterrupt
        return honest(stack, prompt_ids, arm, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cells.runs, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cells.decode_cell(settings_for(stack_folder), output)
    assert measured_prompts(cells) == {"prompt 1"}
    cells.calls.clear()
    cells.decode_cell(settings_for(stack_folder), output)
    assert measured_prompts(cells) == {"prompt 2"}
    assert [record.prompt for record in read_records(output)] == [p for p in range(PROMPTS) for _ in range(RUNS)]


def test_what_is_complete_but_not_renamed_is_not_measured_again(cells, stack_folder, output, monkeypatch):
    def full(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(cells, "write_text", full)
        with pytest.raises(OSError, match="no space"):
            cells.decode_cell(settings_for(stack_folder), output)
    cells.calls.clear()
    cells.decode_cell(settings_for(stack_folder), output)
    assert not cells.calls
    assert len(read_records(output)) == PROMPTS * RUNS


def other_settings(cells, stack_folder, monkeypatch):
    return settings_for(stack_folder, repeat=1)


def other_weights(cells, stack_folder, monkeypatch):
    (stack_folder / "weaver" / "model.safetensors").write_bytes(b"other")


def other_prompts(cells, stack_folder, monkeypatch):
    file = stack_folder / "prompts" / "math.test.jsonl"
    file.write_text(file.read_text().replace("prompt 2", "another"))


def other_code(cells, stack_folder, monkeypatch):
    monkeypatch.setattr(cells, "family_version", lambda family: 99)


def other_device(cells, stack_folder, monkeypatch):
    monkeypatch.setattr("tfm_bench.measure.provenance._cpu_model", lambda: "Another CPU")


def other_configuration(cells, stack_folder, monkeypatch):
    (stack_folder / "target" / "generation_config.json").write_text("{}")


def other_sources(cells, stack_folder, monkeypatch):
    monkeypatch.setattr(cells, "sources_sha256", lambda: "edited")


def other_weaver(cells, stack_folder, monkeypatch):
    stack = sys.modules["tfm_bench.engine"].Stack
    load = stack.load
    monkeypatch.setattr(stack, "load", lambda *a, **o: replace(load(*a, **o), weaver_implementation="another"))


CHANGES = [other_weights, other_prompts, other_code, other_settings, other_device]
CHANGES += [other_configuration, other_sources, other_weaver]


@pytest.mark.parametrize("change", CHANGES)
def test_what_belongs_to_something_else_is_discarded_with_a_message(
    cells, stack_folder, output, stopped, monkeypatch, capsys, change
):
    settings = change(cells, stack_folder, monkeypatch) or settings_for(stack_folder)
    cells.decode_cell(settings, output)
    assert "prompt 0" in measured_prompts(cells)
    assert len(read_records(output)) == PROMPTS * RUNS
    (line,) = (line for line in capsys.readouterr().err.splitlines() if ".cell.jsonl.partial" in line)
    assert line.endswith(".cell.jsonl.partial: of other settings or code; discarded")


def test_bad_input_leaves_what_was_measured(cells, stack_folder, output, stopped):
    before = stopped.read_bytes()
    with pytest.raises(UserError):
        cells.decode_cell(settings_for(stack_folder, prompts=PROMPTS + 1), output)
    assert stopped.read_bytes() == before


def test_every_source_of_both_packages_counts_and_nothing_else(tmp_path):
    names = ["kernels/gdn/a.py", "kernels/a.cpp", "kernels/lanes.h", "tfm_bench/measure/b.py"]
    for name in [*names, "kernels/README.md", "tfm_bench/b.pyc", "tests/c.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    hashes = [sources_sha256(tmp_path)]
    for name in names:
        (tmp_path / name).write_text("2")
        hashes.append(sources_sha256(tmp_path))
    for name in ("kernels/README.md", "tfm_bench/b.pyc", "tests/c.py"):
        (tmp_path / name).write_text("2")
    assert len(set(hashes)) == 5
    assert sources_sha256(tmp_path) == hashes[-1]
