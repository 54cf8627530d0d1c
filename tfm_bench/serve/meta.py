"""A generation in the words of SGLang 0.5.23: meta_info, finish_reason and what its GET routes say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tfm_bench.backends.flags import ALGORITHMS, PROPOSALS
from tfm_bench.engine import Arm, Stack


@dataclass
class Progress:
    """What has been emitted so far: the first token by itself, then the tokens of each round."""

    steps: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """All of them."""
        return [token for step in self.steps for token in step]

    @property
    def rounds(self) -> int:
        """Verifications of the target; the prefill is none."""
        return max(0, len(self.steps) - 1)

    @property
    def histogram(self) -> list[int]:
        """How many rounds accepted 0, 1, 2, ... drafts, the last round's as cut by a stop id or the length limit."""
        accepted = [len(step) - 1 for step in self.steps[1:]]
        return [accepted.count(drafts) for drafts in range(max(accepted) + 1)] if accepted else []


def draft_count(stack: Stack, arm: Arm) -> int:
    """Draft nodes that each round verifies."""
    return min(arm.budget, stack.block_size - 1) if arm.method == "dflash_chain" else arm.budget


def speculation(progress: Progress, drafts: int) -> dict[str, Any]:
    """The spec_* entries of meta_info: none for plain decoding and before the first round."""
    rounds, tokens = progress.rounds, progress.tokens
    proposed, correct = rounds * drafts, len(tokens) - 1 - rounds
    if not proposed:
        return {}
    return {
        "spec_accept_rate": correct / proposed,
        "spec_accept_length": len(tokens) / rounds,
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": rounds,
        "spec_correct_drafts_histogram": progress.histogram,
    }


def finish_reason(tokens: list[int], stop_ids: Collection[int], max_new_tokens: int) -> dict[str, Any] | None:
    """Why a generation ends with these tokens; None where it goes on."""
    if tokens[-1] in stop_ids:
        return {"type": "stop", "matched": tokens[-1]}
    return {"type": "length", "length": len(tokens)} if len(tokens) >= max_new_tokens else None


def models(stack: Stack, created: int) -> dict[str, Any]:
    """The list of /v1/models. created: when the server was started, in seconds of the epoch."""
    name = stack.directory.name
    model = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tfm-bench",
        "root": name,
        "parent": None,
        "max_model_len": stack.target.config.max_position_embeddings,
    }
    return {"object": "list", "data": [model]}


def model_info(stack: Stack) -> dict[str, Any]:
    """What /model_info says; clients load the tokenizer from tokenizer_path, the folder as the server was given it."""
    target = str(stack.directory / "target")
    return {
        "model_path": target,
        "served_model_name": stack.directory.name,
        "tokenizer_path": target,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": stack.target.config.model_type,
        "architectures": stack.target.config.architectures,
    }


def server_info(stack: Stack, arm: Arm) -> dict[str, Any]:
    """The settings that decide on tokens and speed, under the names of SGLang's arguments."""
    algorithm = ALGORITHMS[arm.method]
    info = {
        "model_path": stack.directory.name,
        "speculative_algorithm": algorithm,
        "speculative_num_draft_tokens": draft_count(stack, arm) + 1 if algorithm else None,
    }
    if arm.method in PROPOSALS:
        info["speculative_dflash_tfm_tree_budget"] = arm.budget
        info["speculative_dflash_tfm_proposal"] = PROPOSALS[arm.method]
    return info
