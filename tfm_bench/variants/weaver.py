"""Weavers with another pool, with an input that is missing or wrong, or trained with another loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tfm_bench.drafting.weaver_tree import WeaverRuntime
from tfm_bench.engine import Arm, Draft, Stack
from tfm_bench.errors import UserError
from tfm_bench.models.weaver_control import CONTROLS, CONTROLS_FOLDER, FULL
from tfm_bench.models.weaver_files import load_weaver
from tfm_bench.tree import TokenTree

PERMUTATION_SEED = 0


def pool(stack: Stack, size: str) -> Stack:
    """The stack whose Weaver chooses among the drafter's best `size` tokens per depth.

    Raises UserError for anything but a whole number from 1 to the size of the vocabulary.
    """
    target = stack.target
    if not (size.isdecimal() and 1 <= int(size) <= target.vocab_size):
        accepted = f"pool_1 to pool_{target.vocab_size}, the target's vocabulary"
        raise UserError(f"variant: found 'pool_{size}'; accepted are {accepted}")
    runtime = WeaverRuntime(stack.weaver.weaver, target.embedding, target.head.weight, pool_size=int(size))
    return replace(stack, own_weaver=runtime)


def weaver(stack: Stack, name: str) -> Stack:
    """The stack with a Weaver of UNTRAINED, or with that in controls/`name`, shown what it was shown in training.

    Raises UserError where the stack has none of this name.
    """
    return UNTRAINED[name](stack) if name in UNTRAINED else _trained(stack, name)


def wrong_tokens(vocab_size: int) -> Tensor:
    """[V] int64: a fixed permutation that gives every token another one; all are on one random cycle."""
    order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(PERMUTATION_SEED))
    return torch.empty_like(order).index_copy_(0, order, order.roll(1))


def _no_residual(stack: Stack) -> Stack:
    """Weaver without its residual: what is left is the drafter's marginal, cut to the pool."""
    target, without = stack.target, copy.deepcopy(stack.weaver.weaver)
    torch.nn.init.zeros_(without.lm_head_query_in.weight)
    return replace(stack, own_weaver=WeaverRuntime(without, target.embedding, target.head.weight))


def _wrong_parent(stack: Stack) -> Stack:
    """Every drafted token is shown to Weaver as another one, at its own place in the tree; the anchor as it is.

    The anchor stays, since it is no guess: the drafter sees it too. So the first drafts are as good as Weaver's own,
    and what is lost is lost by conditioning on wrong drafts.
    """
    target = stack.target
    wrong = wrong_tokens(target.vocab_size).to(target.device)
    runtime = WeaverRuntime(stack.weaver.weaver, target.embedding[wrong], target.head.weight)
    shown_as = wrong.argsort().tolist()  # the token that is shown as the index
    build = stack.builders["tfm"]

    def build_wrongly(stack: Stack, arm: Arm, draft: Draft) -> TokenTree:
        tree = build(stack, arm, draft._replace(anchor=shown_as[draft.anchor]))
        return replace(tree, tokens=torch.cat([torch.tensor([draft.anchor]), tree.tokens[1:]]))

    return replace(stack, own_weaver=runtime, builders={**stack.builders, "tfm": build_wrongly})


UNTRAINED: Mapping[str, Callable[[Stack], Stack]] = {"no_residual": _no_residual, "wrong_parent": _wrong_parent}


def _trained(stack: Stack, name: str) -> Stack:
    folder = stack.directory / CONTROLS_FOLDER / name
    if not folder.is_dir():
        others = ", ".join(UNTRAINED)
        raise UserError(f"{folder}: not there; weaver_{name} needs a Weaver trained for it (without one: {others})")
    target, control = stack.target, CONTROLS.get(name, FULL)
    trained = load_weaver(folder, target.dtype).to(target.device)
    for key in ("d_model", "d_embed"):
        if getattr(trained.config, key) != target.hidden_size:
            found = f"{key} is {getattr(trained.config, key)}"
            raise UserError(f"{folder / 'config.json'}: {found}; the target's width is {target.hidden_size}")
    return replace(stack, own_weaver=WeaverRuntime(trained, target.embedding, target.head.weight, control=control))
