"""Batches of draft blocks over regenerated text: what the drafter and the Weaver are trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from tfm_bench.training.regenerate import regenerated_files


@dataclass(frozen=True)
class BlockBatch:
    """R sequences of T tokens with A anchors each; D = block size - 1 drafted positions per anchor.

    ids [R, T]; anchors [R, A]; features [R, T, taps * H]; labels [R, A, D] the tokens after the anchor; valid
    [R, A, D] False beyond the end of a sequence; target_logits [R, A, D, V] of the target under the very prefix that
    ends before each label; target_hidden [R, A, H] after the final norm, of the position that produced the anchor.
    """

    ids: Tensor
    anchors: Tensor
    features: Tensor
    labels: Tensor
    valid: Tensor
    target_logits: Tensor
    target_hidden: Tensor


class RegeneratedText:
    """Sequences and features that `regenerate` wrote, with the target's embedding and head."""

    def __init__(self, directory: Path, model: Qwen3_5ForCausalLM, *, block_size: int, dev_share: float = 0.04) -> None:
        sequences_path, features_path = regenerated_files(directory)
        sequences = json.loads(sequences_path.read_text())
        self.hidden_size = model.config.hidden_size
        self.embedding = model.model.embed_tokens.weight.detach().float()
        self.head = model.lm_head.weight.detach().float()
        self.horizon = block_size - 1
        rows = np.memmap(features_path, dtype=np.int16, mode="r")
        total = sum(len(ids) for ids, _ in sequences)
        self.rows = rows.reshape(total, -1)
        starts = np.cumsum([0] + [len(ids) for ids, _ in sequences])
        usable = [
            (ids, prompt, int(start))
            for (ids, prompt), start in zip(sequences, starts, strict=False)
            if len(ids) - prompt >= 8
        ]
        order = np.random.default_rng(0).permutation(len(usable))
        dev = max(1, int(len(usable) * dev_share))
        self.split = {"dev": [usable[i] for i in order[:dev]], "train": [usable[i] for i in order[dev:]]}

    def batch(self, split: str, rows: int, anchors: int, key: list[int]) -> BlockBatch:
        """Random sequences and anchors, a function of `key` alone."""
        generator = np.random.default_rng(key)
        items = self.split[split]
        chosen = [items[i] for i in generator.choice(len(items), rows, replace=rows > len(items))]
        length = max(len(ids) for ids, _, _ in chosen)
        ids = torch.zeros(rows, length, dtype=torch.int64)
        wide = torch.zeros(rows, length, self.rows.shape[1])
        places = torch.zeros(rows, anchors, dtype=torch.int64)
        ends = torch.tensor([len(tokens) for tokens, _, _ in chosen])
        for row, (tokens, prompt, start) in enumerate(chosen):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            part = np.array(self.rows[start : start + len(tokens)])
            wide[row, : len(tokens)] = torch.from_numpy(part).view(torch.bfloat16).float()
            options = np.arange(prompt, len(tokens) - 1)
            picked = generator.choice(options, anchors, replace=anchors > len(options))
            places[row] = torch.from_numpy(np.sort(picked))
        return self._gather(ids, wide, places, ends)

    def _gather(self, ids: Tensor, wide: Tensor, anchors: Tensor, ends: Tensor) -> BlockBatch:
        features, hidden = wide[..., : -self.hidden_size], wide[..., -self.hidden_size :]
        offsets = anchors[..., None] + torch.arange(1, self.horizon + 1)
        valid = offsets < ends[:, None, None]
        offsets = offsets.clamp(max=ids.shape[1] - 1)
        logits = hidden @ self.head.T
        rows = torch.arange(ids.shape[0])[:, None]
        return BlockBatch(
            ids=ids,
            anchors=anchors,
            features=features,
            labels=ids[rows[..., None], offsets],
            valid=valid,
            target_logits=logits[rows[..., None], offsets - 1],
            target_hidden=hidden[rows, anchors - 1],
        )
