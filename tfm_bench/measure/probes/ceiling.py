"""Acceptance by depth under the target's own law: trained drafter, Weaver, and what no factorised drafter can pass.

One observation per dataset, place, depth and drafter:

- dataset, place, prompt_id, position (of the anchor, in the text), depth, samples (those that had not stopped before
  this depth);
- drafter: `ceiling` (the oracle marginal), `ceiling_argmax` and `best_factorised` of measure.oracle_marginal,
  `dflash` and `dflash_argmax` (the trained drafter's marginal and a point mass at its likeliest token), `weaver` and
  `weaver_argmax` (Weaver's conditional over its pool, given the very prefix);
- acceptance: mean over prefixes of sum_v min(proposal, p). Oracles are estimated from one half of the samples and
  judged on the other, both ways averaged: noise makes this too low. acceptance_same_samples: estimated and judged on
  all samples, which is too high.

Places: one per prompt (more only where there are fewer prompts), so that they are independent; the anchor is drawn
uniformly from the prompt's own sampled text. Places where rounds of a method start would depend on that method.
A sample ends at a stop token, and the depths beyond it are averaged over those that go on, as rounds would be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from tfm_bench.ablations import ProbeSettings
from tfm_bench.engine import Arm, Draft, Stack, generate
from tfm_bench.measure.continuations import Prefixes, sampled_prefixes
from tfm_bench.measure.oracle_marginal import acceptance, factorised_proposals, point_mass
from tfm_bench.measure.progress import with_progress
from tfm_bench.prompts.datasets import Prompt, encode_for, load_prompts
from tfm_bench.verification.sample_match import KeyedNoise

VERSION = 1
TEMPERATURE = 1.0  # what drafter and Weaver were trained for
HALVES = (slice(0, None, 2), slice(1, None, 2))
ALL = slice(None)


class Place(NamedTuple):
    """Where drafts are made: text ends with the anchor."""

    number: int
    prompt_id: str
    text: list[int]


def probe(stack: Stack, settings: ProbeSettings) -> Iterator[dict[str, Any]]:
    """Observations of `ablations.ceiling.places` places in each of its data sets; see the module."""
    for dataset in settings.ablations.ceiling.datasets:
        yield from ({"dataset": dataset, **found} for found in _observations(stack, settings, dataset))


def _observations(stack: Stack, settings: ProbeSettings, dataset: str) -> Iterator[dict[str, Any]]:
    ceiling = settings.ablations.ceiling
    depths = min(ceiling.depths, stack.block_size - 1, stack.weaver.weaver.config.K)
    for place in with_progress(places_of(stack, settings, dataset), f"ceiling, {dataset}", unit="places"):
        draft = draft_behind(stack, place.text)
        at_depths = sampled_prefixes(
            stack.target,
            place.text,
            samples=ceiling.samples,
            depths=depths,
            temperature=TEMPERATURE,
            stop_ids=stack.stop_ids,
            generator=torch.Generator().manual_seed(settings.seed + place.number),
        )
        where = {"place": place.number, "prompt_id": place.prompt_id, "position": draft.position}
        for depth, prefixes in enumerate(at_depths, start=1):
            # A half needs a sample; beyond this depth hardly any text goes on.
            if len(prefixes.rows) < len(HALVES):
                break
            at = {**where, "depth": depth, "samples": len(prefixes.rows)}
            yield from ({**at, **found} for found in acceptances(stack, draft, prefixes))


def places_of(stack: Stack, settings: ProbeSettings, dataset: str) -> list[Place]:
    """Anchors in the target's own text of the test prompts; fewer than asked for where the texts are too short."""
    wanted = settings.ablations.ceiling.places
    prompts = load_prompts(dataset, "test", Path(settings.stack.path) / "prompts", wanted)
    anchors = [
        (prompt.id, text)
        for index, prompt in enumerate(with_progress(prompts, f"ceiling, texts of {dataset}"))
        for text in _texts(stack, prompt, settings, index, share=len(range(index, wanted, len(prompts))))
    ]
    return [Place(index, prompt_id, text) for index, (prompt_id, text) in enumerate(anchors)]


def _texts(stack: Stack, prompt: Prompt, settings: ProbeSettings, index: int, share: int) -> list[list[int]]:
    """`share` texts that end at an anchor of one prompt, without repetition."""
    ids, seed = encode_for(settings.stack, stack.tokenizer, prompt), settings.seed + index
    limit = settings.ablations.max_new_tokens
    # Drafts are accepted where the target drew the same token: this is the text of plain decoding, sooner.
    arm = Arm("dflash_chain", budget=stack.block_size - 1)
    tokens = generate(stack, ids, arm, temperature=TEMPERATURE, seed=seed, max_new_tokens=limit).tokens
    ends = [end for end, token in enumerate(tokens, start=1) if token not in stack.stop_ids]
    return [ids + tokens[:end] for end in sorted(random.Random(seed).sample(ends, min(share, len(ends))))]


@torch.inference_mode()
def draft_behind(stack: Stack, text: list[int]) -> Draft:
    """What the drafter proposes behind `text`, whose last token is the anchor; at least one token stands before it."""
    committed, anchor = torch.tensor(text[:-1]), text[-1]
    start = committed.shape[0]
    output = stack.target.prefill(stack.target.new_state(start, 1), committed)
    context = stack.drafter.new_state(start)
    stack.drafter.append(context, output.taps, 0)
    config = stack.drafter.config
    block = torch.full((config.block_size,), config.mask_token_id)
    block[0] = anchor
    hidden = stack.drafter.draft(context, stack.target.embed(block), start)
    return Draft(anchor, start, output.hidden[-1], hidden, stack.target.lm_head(hidden), KeyedNoise(0))


@torch.inference_mode()
def weaver_conditionals(stack: Stack, draft: Draft, paths: Tensor) -> Tensor:
    """Weaver's distribution [U, V] of the token behind each of the paths [U, t - 1], zero outside its pool."""
    runtime, target = stack.weaver, stack.target
    weaver, device = runtime.weaver, target.device
    count, depth = paths.shape[0], paths.shape[1]
    dtype = weaver.lm_head_query_in.weight.dtype
    tokens = torch.cat([paths.new_full((count, 1), draft.anchor), paths], dim=1).to(device)
    queries = weaver.path_queries(
        runtime.control.target_hidden(draft.target_hidden).to(dtype).expand(count, -1),
        draft.hidden[: weaver.config.K].to(dtype).expand(count, -1, -1),
        embedding(tokens, runtime.control.embedding(target.embedding)).to(dtype),
    )[:, -1]
    scores, pool = draft.logits[depth].float().topk(runtime.pool_size)
    residuals = queries.float() @ runtime.residual_head[pool].float().T
    conditionals = torch.zeros(count, draft.logits.shape[1], device=device)
    return conditionals.index_copy_(1, pool, (scores + residuals).softmax(-1)).cpu()


def acceptances(stack: Stack, draft: Draft, prefixes: Prefixes) -> Iterator[dict[str, Any]]:
    """drafter, acceptance and acceptance_same_samples at the depth of these prefixes."""
    p, weights = prefixes.p, prefixes.weights()
    marginal = draft.logits[prefixes.paths.shape[1]].float().softmax(-1).cpu()
    woven = weaver_conditionals(stack, draft, prefixes.paths)
    trained = {"dflash": marginal, "weaver": woven}
    for name, proposal in trained.items():
        for drafter, proposed in ((name, proposal), (f"{name}_argmax", point_mass(proposal))):
            found = acceptance(proposed, p, weights)
            yield {"drafter": drafter, "acceptance": found, "acceptance_same_samples": found}
    same = _oracles(prefixes, ALL, ALL)
    split = [_oracles(prefixes, fitted, judged) for fitted, judged in (HALVES, HALVES[::-1])]
    for drafter, found in same.items():
        mean = sum(half[drafter] for half in split) / len(split)
        yield {"drafter": drafter, "acceptance": mean, "acceptance_same_samples": found}


def _oracles(prefixes: Prefixes, fitted: slice, judged: slice) -> dict[str, float]:
    """Acceptance on the samples `judged` of what is best on the samples `fitted`."""
    weights = prefixes.weights(judged)
    proposals = factorised_proposals(prefixes.p, prefixes.weights(fitted))
    return {name: acceptance(proposal, prefixes.p, weights) for name, proposal in proposals.items()}
