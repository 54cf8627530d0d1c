"""How far the two commits of Gated-DeltaNet states drift over one long text.

Three states of one target verify the same trees and accept the same paths: two commit by `replay` and `fold`, the third
exactly: the recurrence over its keys, values and gates in float64, rounded to float32 for the next verification alone.
The states of each are compared with the same recurrence over its own inputs, which leaves the arithmetic of the commit;
its logits with those of the third, which adds what came of it in every layer and round before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.gdn_tree.commit import replay
from tfm_bench.engine import Arm, Stack, generate
from tfm_bench.measure.kernel_problems import relative_rms
from tfm_bench.measure.progress import with_progress
from tfm_bench.models.cache import TargetState
from tfm_bench.models.target import PREFILL_WIDTH, Target
from tfm_bench.tree import TokenTree

COMMITS = ("replay", "fold")
EXACT = "exact"


class VerifiedRound(NamedTuple):
    """A verified tree and the path that was accepted, the anchor first."""

    tree: TokenTree
    path: list[int]


class Drift(NamedTuple):
    """Relative RMS differences after `tokens` committed tokens.

    state: of the recurrent states of all layers from float64; logits: of all nodes of the next tree, from those of the
    exact commit.
    """

    commit: str
    tokens: int
    state: float
    logits: float


def recorded_rounds(stack: Stack, prompt_ids: Sequence[int], arm: Arm, **options: Any) -> list[VerifiedRound]:
    """A prompt, as chains that are accepted whole, and the rounds of its answer; options: those of `generate`."""
    rounds = [
        VerifiedRound(TokenTree.chain(piece.tolist(), [0.0] * len(piece)), list(range(len(piece))))
        for piece in torch.tensor(prompt_ids).split(PREFILL_WIDTH)
    ]
    generate(
        stack,
        prompt_ids,
        arm,
        observer=lambda _draft, tree, _output, outcome: rounds.append(VerifiedRound(tree, outcome.path)),
        **options,
    )
    return rounds


@torch.inference_mode()
def commit_drift(target: Target, rounds: Sequence[VerifiedRound], *, every: int) -> Iterator[Drift]:
    """Drift of both commits at the first round after each `every` tokens of one text."""
    length, width = sum(len(path) for _, path in rounds), max(tree.width for tree, _ in rounds)
    states = {name: target.new_state(length, width) for name in (*COMMITS, EXACT)}
    truths = {name: state.recurrent.double() for name, state in states.items()}
    tokens, due = 0, every
    for tree, path in with_progress(rounds, f"drift in {target.dtype}", unit="rounds"):
        logits = {name: target.verify(state, tree).logits for name, state in states.items()}
        if tokens >= due:
            for name in COMMITS:
                yield Drift(
                    name,
                    tokens,
                    state=relative_rms(states[name].recurrent, truths[name]),
                    logits=relative_rms(logits[name], logits[EXACT].double()),
                )
            due = tokens - tokens % every + every
        for name, state in states.items():
            advance(truths[name], state, path)
            state.commit(path, "replay" if name == EXACT else name)
        states[EXACT].recurrent.copy_(truths[EXACT])
        tokens += len(path)


@torch.inference_mode()
def advance(truth: Tensor, state: TargetState, path: list[int]) -> None:
    """The recurrence along `path` in float64, in place in `truth`, over what `state` has verified and not committed."""
    inputs = {
        name: torch.cat([getattr(layer, name) for layer in state.pending]).double() for name in ("k", "v", "g", "beta")
    }
    replay(**inputs, path=torch.tensor(path, device=truth.device), state=truth)
