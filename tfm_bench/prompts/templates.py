"""From a user's words to what the target reads: one user turn, by the tokenizer's template or built by hand (§8.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tfm_bench.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatFormat = Literal["template", "chatml"]
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


def render_chat(tokenizer: PreTrainedTokenizerBase, text: str, *, reasoning: bool, chat_format: ChatFormat) -> str:
    """One user turn and the start of the answer, as text.

    reasoning: whether the target thinks before it answers. chat_format: "template" is the tokenizer's own, "chatml"
    the hand-built one of the paper's benchmark. Raises UserError where the tokenizer cannot do what is asked.
    """
    if chat_format == "chatml":
        _require_markers(tokenizer)
        return chatml(text, reasoning=reasoning)
    rendered = _by_template(tokenizer, text, reasoning)
    if reasoning and rendered == _by_template(tokenizer, text, False):
        raise UserError("reasoning: found true; the tokenizer's chat template does not know it, false is accepted")
    return rendered


def chatml(text: str, *, reasoning: bool) -> str:
    """The benchmark's own prompt: thinking is opened, or opened and closed again."""
    thinking = "<think>\n" if reasoning else "<think>\n\n</think>\n\n"
    return f"{TURN_START}user\n{text}{TURN_END}\n{TURN_START}assistant\n{thinking}"


def _by_template(tokenizer: PreTrainedTokenizerBase, text: str, reasoning: bool) -> str:
    if tokenizer.chat_template is None:
        raise UserError("tokenizer: found no chat template; a tokenizer that has one is accepted for chat prompts")
    turns = [{"role": "user", "content": text}]
    return str(
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, enable_thinking=reasoning, tokenize=False)
    )


def _require_markers(tokenizer: PreTrainedTokenizerBase) -> None:
    known = tokenizer.get_added_vocab()
    for marker in (TURN_START, TURN_END):
        if marker not in known:
            raise UserError(f"tokenizer: found no token {marker}; chat_format chatml needs it, template is accepted")
