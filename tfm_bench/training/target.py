"""Step 2: the target, a small hybrid in the Qwen3.5 architecture: three Gated-DeltaNet layers to one of attention."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tfm_bench.training.common import (
    Encoded,
    Trainer,
    encoded_documents,
    fingerprint,
    packed_row,
    shuffled,
    write_report,
)
from tfm_bench.training.tokenizer import END_OF_TEXT, TURN_END

ROW_LENGTH = 256
ROWS = 12
PROMPT_WEIGHT = 0.3
ROWS_OF_DOMAIN = {"math": 9, "code": 1, "chat": 2}
SIZES = {
    "small": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 12, "heads": 3},
    "wide": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "heads": 4},
}


def target_config(size: str, tokenizer: PreTrainedTokenizerFast) -> Qwen3_5TextConfig:
    """Architecture of one named size; linear attention has two value heads per key head, as in larger models."""
    shape = dict(SIZES[size])
    heads = shape.pop("heads")
    return Qwen3_5TextConfig(
        **shape,
        vocab_size=len(tokenizer),
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=heads,
        linear_num_value_heads=2 * heads,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=stop_ids(tokenizer),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    )


def stop_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Ends of a turn and of a document."""
    return [tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, END_OF_TEXT)]


def weighted_loss(model: Qwen3_5ForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of the next token, weighted per predicted token. ids, weights [rows, length]."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1])
    losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    chosen = weights[:, 1:].flatten()
    return (losses * chosen).sum() / chosen.sum()


def compile_layers(model: Qwen3_5ForCausalLM, ids: Tensor, weights: Tensor) -> None:
    """Compiles each layer; compiled code that computes something else than eager code is an error, not a surprise."""
    with torch.no_grad():
        eager = weighted_loss(model, ids, weights).item()
        torch._dynamo.config.recompile_limit = 4 * len(model.model.layers)
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward)
        compiled = weighted_loss(model, ids, weights).item()
    if not math.isclose(eager, compiled, rel_tol=2e-3):
        raise RuntimeError(f"compiled loss {compiled} differs from eager loss {eager}")


def batch(documents: dict[str, dict[str, list[Encoded]]], seed: int, step: int) -> tuple[Tensor, Tensor]:
    """ids and weights [ROWS, ROW_LENGTH] of one step, a function of seed and step alone."""
    generator = np.random.default_rng([seed, step])
    rows = [
        packed_row(drawn(documents[domain]["train"], generator), ROW_LENGTH, PROMPT_WEIGHT)
        for domain, count in ROWS_OF_DOMAIN.items()
        for _ in range(count)
    ]
    return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])


def drawn(items: list[Encoded], generator: np.random.Generator) -> Iterator[Encoded]:
    """Random documents, drawn with replacement: a pass order over the whole set would cost more than the step."""
    while True:
        yield items[generator.integers(len(items))]


@torch.no_grad()
def answer_loss(model: Qwen3_5ForCausalLM, items: list[Encoded], rows: int = 48) -> float:
    """Mean cross-entropy in nats per answer token over the first rows of held-out documents."""
    stream = shuffled(items, np.random.default_rng(0))
    packed = [packed_row(stream, ROW_LENGTH, 0.0) for _ in range(rows)]
    losses = []
    for start in range(0, rows, ROWS):
        part = packed[start : start + ROWS]
        ids, weights = torch.tensor([row for row, _ in part]), torch.tensor([weight for _, weight in part])
        losses.append(weighted_loss(model, ids, weights).item())
    return sum(losses) / len(losses)


def main() -> None:
    """Trains and writes --output/target (bf16 weights); a killed run resumes from --output/state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.output / "target")
    documents = encoded_documents(tokenizer, arguments.seed, arguments.output)
    model = Qwen3_5ForCausalLM(target_config(arguments.size, tokenizer)).train()
    mark = fingerprint(arguments.output / "target" / "tokenizer.json")
    trainer = Trainer(
        model,
        batch_of=lambda step: batch(documents, arguments.seed, step),
        loss_of=lambda rows: weighted_loss(model, *rows),
        steps=arguments.steps,
        learning_rate=3e-3,
        state_path=arguments.output / "state" / f"target-{mark}-{arguments.seed}-{arguments.size}-{arguments.steps}.pt",
    )
    compile_layers(model, *batch(documents, arguments.seed, 0))
    trainer.run()
    report = {
        "size": arguments.size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": arguments.steps,
        "tokens": arguments.steps * ROWS * ROW_LENGTH,
        "seconds": round(trainer.seconds),
        "dev_nats_per_answer_token": {
            domain: round(answer_loss(model, splits["dev"]), 4) for domain, splits in documents.items()
        },
    }
    write_report(arguments.output, f"target-{arguments.size}-{arguments.steps}", report)
    save(model, tokenizer, arguments.output / "target")


def save(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """bf16 weights, config and the generation config with every stop id."""
    model.generation_config = GenerationConfig(eos_token_id=stop_ids(tokenizer), pad_token_id=model.config.pad_token_id)
    model.to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main()
