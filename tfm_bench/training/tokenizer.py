"""Step 1: a byte-level BPE tokenizer with single digits, and the chat template that goes with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tfm_bench.training.data import DOMAINS, Document, documents, write_prompts

VOCABULARY = 4096
END_OF_TEXT, TURN_START, TURN_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MATH_COUNT = 60_000
TOKENIZER_CHARACTERS = 6_000_000
PROMPTS_PER_SPLIT = 64


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of VOCABULARY entries; every digit is its own token, as in the Qwen family."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def encode_document(tokenizer: PreTrainedTokenizerFast, document: Document) -> tuple[list[int], int]:
    """Token ids of a whole document and the length of its prompt part; the last id is a stop id."""
    if document.kind == "chat":
        turn = [{"role": "user", "content": document.prompt}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        end = TURN_END
    else:
        prompt = tokenizer.encode(document.prompt)
        end = END_OF_TEXT
    answer = [*tokenizer.encode(document.answer), tokenizer.convert_tokens_to_ids(end)]
    return prompt + answer, len(prompt)


def balanced_texts(by_domain: dict[str, list[Document]]) -> Iterable[str]:
    """Up to TOKENIZER_CHARACTERS of training text from each domain."""
    for items in by_domain.values():
        used = 0
        for item in items:
            if item.split == "train" and used < TOKENIZER_CHARACTERS:
                used += len(item.prompt) + len(item.answer)
                yield f"{item.prompt}\n{item.answer}"


def main() -> None:
    """Writes the tokenizer to --output/target and the evaluation prompts to --output/prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    by_domain = {domain: list(documents(domain, MATH_COUNT, arguments.seed)) for domain in DOMAINS}
    train_tokenizer(balanced_texts(by_domain)).save_pretrained(arguments.output / "target")
    write_prompts(arguments.output / "prompts", by_domain, PROMPTS_PER_SPLIT)


if __name__ == "__main__":
    main()
