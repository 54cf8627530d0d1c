"""Step 5: the Weaver, on the frozen target and drafter (arXiv 2607.06763; LK losses: arXiv 2602.23881).

Target distribution p and Weaver distribution q are both normalised over the drafter's top-C pool, and a = sum min(p, q)
is the acceptance of sampling. Two losses are tried on equal steps; the one with the higher held-out a is trained in
full. `log`: -log a; `mixed`: w KL(p, q) + (1 - w)(1 - a) with w = exp(-a), a held constant. --form and --control train
the Weavers of `ablation_drafting` instead: the other loss, or a Weaver that never saw one of its inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from tfm_bench.models.checkpoints import load_strict
from tfm_bench.models.dflash import DFlashDrafter
from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.weaver import Weaver
from tfm_bench.models.weaver_config import WeaverConfig
from tfm_bench.models.weaver_control import CONTROLS, FULL, WeaverControl
from tfm_bench.training.blocks import BlockBatch, RegeneratedText
from tfm_bench.training.common import Trainer, fingerprint, save_weights, write_report
from tfm_bench.training.dflash import ANCHORS, BLOCK_SIZE, DECAY, ROWS, draft_hidden

RANK, HEADS, MLP, POOL = 128, 4, 256, 512
LOSSES = ("log", "mixed")


def overlap(p: Tensor, log_q: Tensor) -> Tensor:
    """Acceptance a = sum over the pool of min(p, q); p, log_q [..., C]."""
    return torch.minimum(p, log_q.exp()).sum(-1)


def lk_loss(form: str, p: Tensor, log_q: Tensor) -> Tensor:
    """Loss per position, p and log_q [..., C]."""
    a = overlap(p, log_q)
    if form == "log":
        return -a.clamp_min(1e-6).log()
    weight = torch.exp(-a.detach())
    divergence = (p * (p.clamp_min(1e-12).log() - log_q)).sum(-1)
    return weight * divergence + (1 - weight) * (1 - a)


def pool_distributions(
    weaver: Weaver, drafter: DFlashDrafter, text: RegeneratedText, batch: BlockBatch, control: WeaverControl = FULL
) -> tuple[Tensor, Tensor, Tensor]:
    """Target p, Weaver log q and drafter log q over the pool, each [R * A, D, C]."""
    with torch.no_grad():
        hidden = draft_hidden(drafter, text, batch).flatten(0, 1)
        scores, pool = (hidden @ text.head.T).topk(POOL, dim=-1)
        p = batch.target_logits.flatten(0, 1).gather(-1, pool).softmax(-1)
    anchor = batch.ids.gather(1, batch.anchors)[..., None]
    path = torch.cat([anchor, batch.labels[..., :-1]], dim=-1).flatten(0, 1)
    target_hidden = control.target_hidden(batch.target_hidden.flatten(0, 1))
    residual = weaver.path_scores(
        target_hidden, hidden, F.embedding(path, control.embedding(text.embedding)), text.head, pool
    )
    return p, (scores + residual).log_softmax(-1), scores.log_softmax(-1)


def depth_weights(text: RegeneratedText, batch: BlockBatch) -> Tensor:
    """[R * A, D], zero beyond the end of a sequence."""
    return (torch.exp(-torch.arange(text.horizon) / DECAY) * batch.valid).flatten(0, 1)


@torch.no_grad()
def held_out(
    weaver: Weaver, drafter: DFlashDrafter, text: RegeneratedText, control: WeaverControl = FULL, batches: int = 4
) -> dict[str, list[float]]:
    """Acceptance a by depth on held-out text, of the Weaver and of the drafter's truncated marginal."""
    sums = {"weaver": torch.zeros(text.horizon), "marginal": torch.zeros(text.horizon)}
    count = torch.zeros(text.horizon)
    for index in range(batches):
        batch = text.batch("dev", ROWS, ANCHORS, [11, index])
        p, woven, marginal = pool_distributions(weaver, drafter, text, batch, control)
        valid = batch.valid.flatten(0, 1)
        sums["weaver"] += (overlap(p, woven) * valid).sum(0)
        sums["marginal"] += (overlap(p, marginal) * valid).sum(0)
        count += valid.sum(0)
    return {name: [round(x, 3) for x in (total / count).tolist()] for name, total in sums.items()}


def new_weaver(model: Qwen3_5ForCausalLM) -> Weaver:
    """A fresh Weaver v1 for this target."""
    width = model.config.hidden_size
    return Weaver(
        WeaverConfig(
            d_model=width, d_embed=width, d_rank=RANK, num_layers=1, num_heads=HEADS, mlp_dim=MLP, K=BLOCK_SIZE - 1,
            candidate_pool_size=POOL,
        )
    )  # fmt: skip


def load_drafter(directory: Path) -> DFlashDrafter:
    """The drafter of step 4 in fp32, frozen."""
    drafter = DFlashDrafter(DFlashConfig.from_file(directory))
    drafter.load_state_dict({name: tensor.float() for name, tensor in load_strict(drafter, directory).items()})
    return drafter.requires_grad_(False)


def train(
    form: str,
    steps: int,
    seed: int,
    weaver: Weaver,
    drafter: DFlashDrafter,
    text: RegeneratedText,
    output: Path,
    control: WeaverControl = FULL,
) -> Trainer:
    """A finished run of one loss form."""

    def loss_of(batch: BlockBatch) -> Tensor:
        p, log_q, _ = pool_distributions(weaver, drafter, text, batch, control)
        weights = depth_weights(text, batch)
        return (lk_loss(form, p, log_q) * weights).sum() / weights.sum()

    suffix = "" if control == FULL else f"-{control.name}"
    mark = fingerprint(*(output / part / "model.safetensors" for part in ("target", "drafter")))
    trainer = Trainer(
        weaver,
        batch_of=lambda step: text.batch("train", ROWS, ANCHORS, [seed, 3, step]),
        loss_of=loss_of,
        steps=steps,
        learning_rate=2e-3,
        state_path=output / "state" / f"weaver-{mark}-{seed}-{form}-{steps}{suffix}.pt",
    )
    trainer.run()
    return trainer


def better_loss(run: Callable[[str], dict[str, list[float]]]) -> tuple[str, dict[str, float]]:
    """The loss form with the higher mean held-out acceptance, and the means."""
    means = {form: sum(run(form)["weaver"]) / (BLOCK_SIZE - 1) for form in LOSSES}
    return max(means, key=lambda form: means[form]), means


def main() -> None:
    """Reads --output/target, drafter and the regenerated text, writes --output/weaver or one of the controls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--pilot-steps", type=int, default=250)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--form", choices=LOSSES, help="train with this loss into controls/FORM_loss, without a pilot")
    parser.add_argument("--control", choices=list(CONTROLS), help="train without an input into controls/CONTROL")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = Qwen3_5ForCausalLM.from_pretrained(arguments.output / "target", dtype=torch.float32)
    drafter = load_drafter(arguments.output / "drafter")
    text = RegeneratedText(arguments.output, model, block_size=BLOCK_SIZE)
    control = CONTROLS[arguments.control] if arguments.control else FULL

    def run(form: str, steps: int) -> tuple[Weaver, Trainer]:
        torch.manual_seed(arguments.seed)
        weaver = new_weaver(model)
        return weaver, train(form, steps, arguments.seed, weaver, drafter, text, arguments.output, control)

    part, form = "weaver", arguments.form
    pilots: dict[str, float] = {}
    if arguments.control or form:
        form, part = form or LOSSES[0], f"controls/{arguments.control or f'{form}_loss'}"
    else:
        form, pilots = better_loss(lambda form: held_out(run(form, arguments.pilot_steps)[0], drafter, text))
    weaver, trainer = run(form, arguments.steps)
    report = {
        "loss": form,
        "control": control.name,
        "pilot_dev_acceptance": {name: round(mean, 4) for name, mean in pilots.items()},
        "steps": arguments.steps,
        "seconds": round(trainer.seconds),
        "final_loss": round(sum(trainer.losses[-50:]) / len(trainer.losses[-50:]), 4),
        "dev_acceptance_by_depth": held_out(weaver, drafter, text, control),
    }
    write_report(arguments.output, f"{part.replace('/', '-')}-{arguments.steps}", report)
    save_weights(arguments.output / part, weaver.state_dict(), weaver.config.to_dict())


if __name__ == "__main__":
    main()
