"""Weavers with another pool, or with an input missing."""

from __future__ import annotations

from dataclasses import replace

from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Stack
from tfm_bench.errors import UserError
from tfm_bench.models.weaver_control import CONTROLS, CONTROLS_FOLDER, FULL
from tfm_bench.models.weaver_files import load_weaver


def pool(stack: Stack, size: str) -> Stack:
    """The stack whose Weaver chooses among the drafter's best `size` tokens per depth."""
    target = stack.target
    runtime = WeaverRuntime(stack.weaver.weaver, target.embedding, target.head.weight, pool_size=int(size))
    return replace(stack, weaver=runtime)


def weaver(stack: Stack, name: str) -> Stack:
    """The stack with the Weaver in controls/`name`, shown what it was shown in training.

    Raises UserError where the stack has none of this name.
    """
    folder = stack.directory / CONTROLS_FOLDER / name
    if not folder.is_dir():
        raise UserError(f"{folder}: not there; this ablation needs a Weaver that was trained for it")
    target, control = stack.target, CONTROLS.get(name, FULL)
    trained = load_weaver(folder, target.dtype)
    return replace(stack, weaver=WeaverRuntime(trained, target.embedding, target.head.weight, control=control))
