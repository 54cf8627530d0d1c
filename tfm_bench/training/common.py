"""What the training steps share: packed batches, optimisers, schedule, resumable state."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tfm_bench.measure.files import atomic_write, write_text
from tfm_bench.models.checkpoints import file_sha256
from tfm_bench.training.data import DOMAINS, Document, documents
from tfm_bench.training.tokenizer import MATH_COUNT, encode_document

Encoded = tuple[list[int], int]
Batch = TypeVar("Batch")


def encoded_documents(
    tokenizer: PreTrainedTokenizerFast, seed: int, output: Path
) -> dict[str, dict[str, list[Encoded]]]:
    """domain -> split -> (ids, prompt length) of every document, kept in output/state: the sources take a minute."""
    cache = output / "state" / f"documents-{fingerprint(output / 'target' / 'tokenizer.json')}-{seed}.json"
    if not cache.exists():
        table = {domain: encode_splits(tokenizer, list(documents(domain, MATH_COUNT, seed))) for domain in DOMAINS}
        write_text(cache, json.dumps(table))
    return json.loads(cache.read_text())


def encode_splits(tokenizer: PreTrainedTokenizerFast, items: list[Document]) -> dict[str, list[Encoded]]:
    """split -> encoded documents."""
    splits: dict[str, list[Encoded]] = {"train": [], "dev": [], "test": []}
    for item in items:
        splits[item.split].append(encode_document(tokenizer, item))
    return splits


def fingerprint(*paths: Path) -> str:
    """Twelve hexadecimal digits for the contents of files: state that was made from them carries it in its name."""
    digests = "".join(file_sha256(path) for path in paths)
    return hashlib.sha256(digests.encode()).hexdigest()[:12]


def shuffled(items: list[Encoded], generator: np.random.Generator) -> Iterator[Encoded]:
    """Endless passes over `items`, each in a new order."""
    while True:
        for index in generator.permutation(len(items)):
            yield items[index]


def packed_row(stream: Iterator[Encoded], length: int, prompt_weight: float) -> tuple[list[int], list[float]]:
    """One row of documents end to end, the first from its start, and a loss weight per token."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        document, prompt = next(stream)
        ids += document
        weights += [prompt_weight] * prompt + [1.0] * (len(document) - prompt)
    return ids[:length], weights[:length]


def warmup_stable_decay(step: int, steps: int, warmup: int = 40, decay_share: float = 0.3) -> float:
    """Factor of the peak learning rate: linear up, flat, linear down to zero."""
    decay = max(1, int(steps * decay_share))
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


def optimizers(module: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for vectors and for what maps from or to the vocabulary (embed, lm_head in the name)."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    chosen = {id(p) for p in matrices}
    others = [p for _, p in named if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def save_weights(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, object]) -> None:
    """folder/model.safetensors and config.json."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_write(folder / "model.safetensors") as partial:
        save_file(contiguous, partial, metadata={"format": "pt"})
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")


def write_report(output: Path, name: str, report: dict[str, object]) -> None:
    """Prints a step's report and keeps it as state/<name>.json."""
    text = json.dumps(report, indent=1)
    print(text, flush=True)
    write_text(output / "state" / f"{name}.json", text)


class Trainer(Generic[Batch]):
    """Steps, saves, resumes and logs; the step's loss comes from `loss_of(batch)`.

    batch_of(step) must depend on the step alone, so that a resumed run sees the same data.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        batch_of: Callable[[int], Batch],
        loss_of: Callable[[Batch], Tensor],
        steps: int,
        learning_rate: float,
        state_path: Path,
    ) -> None:
        self.module, self.batch_of, self.loss_of, self.steps = module, batch_of, loss_of, steps
        self.learning_rate, self.state_path = learning_rate, state_path
        self.optimizers = optimizers(module, learning_rate)
        self.step, self.seconds = 0, 0.0
        self.losses: list[float] = []
        if state_path.exists():
            self._load()

    def _load(self) -> None:
        state = torch.load(self.state_path, weights_only=True)
        self.module.load_state_dict(state["module"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.losses = state["step"], state["seconds"], state["losses"]
        print(f"resumed at step {self.step} of {self.steps}", flush=True)

    def _save(self) -> None:
        state = {
            "module": self.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
        }
        with atomic_write(self.state_path) as partial:
            torch.save(state, partial)

    def _one_step(self) -> float:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * warmup_stable_decay(self.step, self.steps)
        loss = self.loss_of(self.batch_of(self.step))
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss is {loss.item()} at step {self.step}")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def run(self, save_every: int = 100, log_every: int = 20) -> list[float]:
        """Trains to the last step and returns the loss of every step."""
        while self.step < self.steps:
            start = time.monotonic()
            self.losses.append(self._one_step())
            self.seconds += time.monotonic() - start
            self.step += 1
            if self.step % log_every == 0:
                mean = sum(self.losses[-log_every:]) / log_every
                left = (self.steps - self.step) * self.seconds / self.step
                print(f"step {self.step}/{self.steps} loss {mean:.4f} left {left / 60:.1f} min", flush=True)
            if self.step % save_every == 0 or self.step == self.steps:
                self._save()
        return self.losses
