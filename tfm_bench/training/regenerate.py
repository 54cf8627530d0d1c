"""Step 3: answers written by the target itself, with the features that drafter and Weaver learn from.

Writes state/regenerated-TARGET.json (token ids and prompt lengths) and state/features-TARGET.bf16: for every token the
drafter's tap features and the hidden state after the final norm, side by side, so that the next steps run no target.
TARGET is a fingerprint of its weights: a new target gets new files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from tfm_bench.measure.files import atomic_write, write_text
from tfm_bench.models.dflash_config import default_taps
from tfm_bench.training.common import Encoded, encoded_documents, fingerprint

PROMPTS_OF_DOMAIN = {"math": 4800, "code": 300, "chat": 300}
MAX_PROMPT, MAX_LENGTH = 144, 256
GENERATION_ROWS, FEATURE_ROWS = 96, 16
GREEDY_SHARE = 0.3
TAPS = 5


def regenerated_files(output: Path) -> tuple[Path, Path]:
    """Sequences and features that belong to the target in `output`."""
    mark = fingerprint(output / "target" / "model.safetensors")
    return output / "state" / f"regenerated-{mark}.json", output / "state" / f"features-{mark}.bf16"


def chosen_prompts(documents: dict[str, dict[str, list[Encoded]]], generator: np.random.Generator) -> list[list[int]]:
    """Training prompts of all domains, shortest first, so that a batch pads little."""
    prompts = []
    for domain, count in PROMPTS_OF_DOMAIN.items():
        short = [ids[:length] for ids, length in documents[domain]["train"] if length <= MAX_PROMPT]
        prompts += [short[i] for i in generator.permutation(len(short))[:count]]
    return sorted(prompts, key=len)


@torch.inference_mode()
def answer(model: Qwen3_5ForCausalLM, prompts: list[list[int]], *, sample: bool) -> list[list[int]]:
    """Prompt and answer ids, the stop id included; sampled at T = 1 or greedy."""
    width = max(map(len, prompts))
    pad = model.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    output = model.generate(ids, attention_mask=mask, max_new_tokens=MAX_LENGTH - width, **options)
    stops = set(model.generation_config.eos_token_id)
    return [prompt + cut_after_stop(row[width:].tolist(), stops) for prompt, row in zip(prompts, output, strict=True)]


def cut_after_stop(ids: list[int], stops: set[int]) -> list[int]:
    """ids up to and including the first stop id."""
    for index, token in enumerate(ids):
        if token in stops:
            return ids[: index + 1]
    return ids


def regenerate(
    model: Qwen3_5ForCausalLM, prompts: list[list[int]], generator: np.random.Generator, report: Callable[[str], None]
) -> list[Encoded]:
    """(ids, prompt length) of every prompt's answer; a share of the batches is greedy, since T = 0 is measured too."""
    sequences: list[Encoded] = []
    for start in range(0, len(prompts), GENERATION_ROWS):
        part = prompts[start : start + GENERATION_ROWS]
        answers = answer(model, part, sample=generator.random() >= GREEDY_SHARE)
        sequences += [(ids, len(prompt)) for ids, prompt in zip(answers, part, strict=True)]
        report(f"regenerated {len(sequences)} of {len(prompts)}")
    return sequences


@torch.inference_mode()
def features_of(model: Qwen3_5ForCausalLM, rows: list[list[int]], taps: tuple[int, ...]) -> list[Tensor]:
    """Per row [length, taps * H + H] bf16: taps in order, then the hidden state after the final norm."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    output = model.model(ids, use_cache=False, output_hidden_states=True)
    parts = [output.hidden_states[tap + 1] for tap in taps] + [output.last_hidden_state]
    joined = torch.cat(parts, dim=-1).to(torch.bfloat16)
    return [joined[i, : len(row)] for i, row in enumerate(rows)]


def write_features(
    model: Qwen3_5ForCausalLM, sequences: list[Encoded], path: Path, report: Callable[[str], None]
) -> None:
    """All rows of all sequences, one after the other, as raw bf16."""
    taps = default_taps(model.config.num_hidden_layers, TAPS)

    with atomic_write(path) as partial, partial.open("wb") as handle:
        for start in range(0, len(sequences), FEATURE_ROWS):
            part = [ids for ids, _ in sequences[start : start + FEATURE_ROWS]]
            for rows in features_of(model, part, taps):
                handle.write(rows.contiguous().view(torch.int16).numpy().tobytes())
            if start % (40 * FEATURE_ROWS) == 0:
                report(f"features of {start} of {len(sequences)}")


def log(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


def main() -> None:
    """Reads --output/target, writes the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    generator = np.random.default_rng(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.output / "target")
    model = Qwen3_5ForCausalLM.from_pretrained(arguments.output / "target", dtype=torch.float32).eval()
    sequences_path, features_path = regenerated_files(arguments.output)
    if not sequences_path.exists():
        documents = encoded_documents(tokenizer, arguments.seed, arguments.output)
        sequences = regenerate(model, chosen_prompts(documents, generator), generator, log)
        write_text(sequences_path, json.dumps(sequences))
    if not features_path.exists():
        write_features(model, json.loads(sequences_path.read_text()), features_path, log)


if __name__ == "__main__":
    main()
