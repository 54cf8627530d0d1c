"""Reasoning on and off, by a template of the Qwen family's form and built by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tfm_bench.errors import UserError
from tfm_bench.prompts.datasets import Prompt, encode_prompt
from tfm_bench.prompts.templates import chatml, render_chat

SHIPPED = Path(__file__).parents[3] / "checkpoints" / "tiny" / "target"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
# Qwen3.5: thinking unless told not to, and the generation prompt opens it.
OPENING = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
ON = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n"
OFF = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def byte_tokenizer(markers: list[str], template: str | None) -> PreTrainedTokenizerFast:
    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.add_special_tokens({"additional_special_tokens": markers})
    fast.chat_template = template
    return fast


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(["<|im_start|>", "<|im_end|>"], TURNS + OPENING)


@pytest.mark.parametrize(("reasoning", "expected"), [(True, ON), (False, OFF)])
@pytest.mark.parametrize("chat_format", ["template", "chatml"])
def test_reasoning_reaches_the_prompt(tokenizer, reasoning: bool, expected: str, chat_format) -> None:
    assert render_chat(tokenizer, "Why?", reasoning=reasoning, chat_format=chat_format) == expected
    ids = encode_prompt(tokenizer, Prompt("a", "Why?", "chat"), reasoning=reasoning, chat_format=chat_format)
    marker = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert [index for index, token in enumerate(ids) if token == marker] == [0, 12], "markers are tokens, not letters"
    assert len(ids) == 3 + len(expected.replace("<|im_start|>", "").replace("<|im_end|>", ""))


def test_the_hand_built_prompt_leaves_the_users_words_alone() -> None:
    assert "\n  {{ x }}\u2028\n<|im_end|>" in chatml("  {{ x }}\u2028\n", reasoning=True)


def test_text_prompts_know_no_reasoning(tokenizer) -> None:
    prompt = Prompt("a", "def f(", "text")
    assert encode_prompt(tokenizer, prompt, reasoning=True) == encode_prompt(tokenizer, prompt)


def test_a_template_that_cannot_reason_is_refused() -> None:
    shipped = AutoTokenizer.from_pretrained(SHIPPED)
    with pytest.raises(UserError, match="reasoning: found true; the tokenizer's chat template does not know it"):
        render_chat(shipped, "Why?", reasoning=True, chat_format="template")
    assert render_chat(shipped, "Why?", reasoning=True, chat_format="chatml") == ON


def test_a_tokenizer_without_markers_or_template_is_refused() -> None:
    bare = byte_tokenizer(["<|im_start|>"], None)
    with pytest.raises(UserError, match=r"found no token <\|im_end\|>; chat_format chatml needs it"):
        render_chat(bare, "Why?", reasoning=False, chat_format="chatml")
    with pytest.raises(UserError, match="found no chat template"):
        render_chat(bare, "Why?", reasoning=False, chat_format="template")
