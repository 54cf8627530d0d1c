"""Step 4: the DFlash drafter, on text that the target wrote (arXiv 2602.06036, appendix A.1).

Anchors, masks and position weights follow the paper. The loss is the forward cross-entropy against the target's own
distribution at each drafted position instead of its one sample: the same optimum with less noise.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from tfm_bench.models.dflash import DFlashDrafter, block_masks, block_positions
from tfm_bench.models.dflash_config import DFlashConfig, default_taps
from tfm_bench.training.blocks import BlockBatch, RegeneratedText
from tfm_bench.training.common import Trainer, fingerprint, save_weights, write_report
from tfm_bench.training.regenerate import TAPS
from tfm_bench.training.tokenizer import MASK

BLOCK_SIZE = 16
LAYERS = 2
ROWS, ANCHORS = 8, 20
DECAY = 7.0


def drafter_config(model: Qwen3_5ForCausalLM, mask_token_id: int) -> dict[str, object]:
    """config.json with the published keys."""
    target = model.config
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK_SIZE,
        "num_target_layers": target.num_hidden_layers,
        "dflash_config": {
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(default_taps(target.num_hidden_layers, TAPS)),
        },
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": target.num_attention_heads,
        "num_key_value_heads": target.num_key_value_heads,
        "head_dim": target.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["full_attention"] * LAYERS,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def draft_hidden(drafter: DFlashDrafter, text: RegeneratedText, batch: BlockBatch) -> Tensor:
    """Drafter hidden states [R, A, D, H] of the drafted positions of every anchor."""
    config = drafter.config
    rows, count = batch.anchors.shape
    block = torch.full((rows, count, config.block_size), config.mask_token_id)
    block[..., 0] = batch.ids.gather(1, batch.anchors)
    length = batch.ids.shape[1]
    hidden = drafter(
        batch.features,
        F.embedding(block.flatten(1), text.embedding),
        torch.arange(length).expand(rows, -1),
        block_positions(batch.anchors, config.block_size),
        block_masks(batch.anchors, length, config),
    )
    return hidden.unflatten(1, (count, config.block_size))[:, :, 1:]


def drafter_loss(drafter: DFlashDrafter, text: RegeneratedText, batch: BlockBatch) -> Tensor:
    """Cross-entropy against the target's distribution, weighted by exp(-(k - 1) / 7) at drafted position k."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = draft_hidden(drafter, text, batch) @ text.head.T
    target = batch.target_logits.softmax(-1)
    entropy = -(target * logits.float().log_softmax(-1)).sum(-1)
    weights = torch.exp(-torch.arange(text.horizon) / DECAY) * batch.valid
    return (entropy * weights).sum() / weights.sum()


@dataclass(frozen=True)
class Acceptance:
    """Probability, by depth, that the chain's token is what the target samples at T = 1 or picks at T = 0."""

    sampled: list[float]
    greedy: list[float]


@torch.no_grad()
def chain_acceptance(drafter: DFlashDrafter, text: RegeneratedText, batches: int = 4) -> Acceptance:
    """Held-out acceptance of the marginals' argmax at each depth, under the true prefix up to that depth."""
    sampled, greedy, count = torch.zeros(text.horizon), torch.zeros(text.horizon), torch.zeros(text.horizon)
    for index in range(batches):
        batch = text.batch("dev", ROWS, ANCHORS, [7, index])
        choice = (draft_hidden(drafter, text, batch) @ text.head.T).argmax(-1, keepdim=True)
        probability = batch.target_logits.softmax(-1).gather(-1, choice)[..., 0]
        agreement = (batch.target_logits.argmax(-1) == choice[..., 0]).float()
        sampled += (probability * batch.valid).sum((0, 1))
        greedy += (agreement * batch.valid).sum((0, 1))
        count += batch.valid.sum((0, 1))
    return Acceptance(
        [round(x, 3) for x in (sampled / count).tolist()], [round(x, 3) for x in (greedy / count).tolist()]
    )


def main() -> None:
    """Reads --output/target and the regenerated text, writes --output/drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4400)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    model = Qwen3_5ForCausalLM.from_pretrained(arguments.output / "target", dtype=torch.float32)
    vocabulary = json.loads((arguments.output / "target" / "tokenizer.json").read_text())["added_tokens"]
    mask_id = next(entry["id"] for entry in vocabulary if entry["content"] == MASK)
    config = drafter_config(model, mask_id)
    drafter = DFlashDrafter(DFlashConfig.from_dict(config))
    text = RegeneratedText(arguments.output, model, block_size=BLOCK_SIZE)
    mark = fingerprint(arguments.output / "target" / "model.safetensors")
    trainer = Trainer(
        drafter,
        batch_of=lambda step: text.batch("train", ROWS, ANCHORS, [arguments.seed, step]),
        loss_of=lambda batch: drafter_loss(drafter, text, batch),
        steps=arguments.steps,
        learning_rate=3e-3,
        state_path=arguments.output / "state" / f"drafter-{mark}-{arguments.seed}-{arguments.steps}.pt",
    )
    trainer.run()
    acceptance = chain_acceptance(drafter, text)
    report = {
        "steps": arguments.steps,
        "anchors": arguments.steps * ROWS * ANCHORS,
        "seconds": round(trainer.seconds),
        "final_loss": round(sum(trainer.losses[-50:]) / 50, 4),
        "dev_acceptance_by_depth_sampled": acceptance.sampled,
        "dev_acceptance_by_depth_greedy": acceptance.greedy,
    }
    write_report(arguments.output, f"drafter-{arguments.steps}", report)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in drafter.state_dict().items()}
    save_weights(arguments.output / "drafter", weights, config)


if __name__ == "__main__":
    main()
