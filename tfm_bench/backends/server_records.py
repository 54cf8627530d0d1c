"""Decode records of server arms: the numbers that a server gives, judged as those of our engine are."""

from __future__ import annotations

from typing import Any

from tfm_bench.backends.request_log import LoggedRequest, ServerRequest
from tfm_bench.backends.server_runs import ServerCell
from tfm_bench.config import DEFAULT_VARIANT
from tfm_bench.measure.lossless import first_divergence, is_degenerate, tokens_sha256
from tfm_bench.measure.records import SERVER_SAMPLER, TOKEN_IDENTICAL, DecodeRecord

IMPLEMENTATION = "sglang"


def server_record(cell: ServerCell, logged: LoggedRequest, plain: LoggedRequest) -> DecodeRecord:
    """The record of one request; plain: that of plain decoding on the same prompt.

    prefill_ms and decode_ms are what a client sees, transport included: from sending a request to its first token, and
    from there to the end. rounds: SGLang's spec_verify_ct. max_depth: of the acceptance histogram, which counts drafts
    of the last round that a stop id then cut off; None where the server gives no histogram. No stage times. Only at
    temperature 0 is the text judged: above it a server draws by noise of its own.
    """
    request = logged.request
    rule = TOKEN_IDENTICAL if cell.settings.temperature == 0 else SERVER_SAMPLER
    reference = plain.output_ids if rule == TOKEN_IDENTICAL else None
    names = {"prompt", "prompt_id", "method", "budget", "expansion_width", "control", "status", "reason"}
    return DecodeRecord(
        **request.model_dump(include=names),
        prompt_tokens=len(cell.prompt_ids[request.prompt]),
        variant=DEFAULT_VARIANT,
        rule=rule,
        **(_numbers(request, logged.output_ids, reference) if request.status == "ok" else {}),
        gdn_implementation=IMPLEMENTATION,
        weaver_implementation=IMPLEMENTATION,
        checkpoint_sha256=cell.checkpoint_sha256,
        prompts_sha256=cell.prompts_sha256,
        settings=cell.settings,
        provenance=logged.provenance,
    )


def _numbers(request: ServerRequest, tokens: list[int], reference: list[int] | None) -> dict[str, Any]:
    """reference: the text that these tokens should be; None where none is promised."""
    assert request.first_token_s is not None
    assert request.total_s is not None
    emitted = len(tokens) - 1
    divergence = None if reference is None else first_divergence(tokens, reference)
    rounds = request.verify_steps or emitted
    return {
        "verify_width": request.budget + 1,
        "tokens": emitted,
        "rounds": rounds,
        "accepted_drafts_sum": emitted - rounds,
        "accepted_drafts": (emitted - rounds) / rounds if rounds else None,
        "acceptance_length": emitted / rounds if rounds else None,
        "max_depth": _max_depth(request),
        "prefill_ms": request.first_token_s * 1e3,
        "decode_ms": (request.total_s - request.first_token_s) * 1e3,
        "tokens_sha256": tokens_sha256(tokens),
        "lossless": None if reference is None else divergence is None,
        "first_divergence": divergence,
        "degenerate": is_degenerate(tokens),
    }


def _max_depth(request: ServerRequest) -> int | None:
    """The most drafts that one round accepted."""
    if not request.verify_steps:
        return 0
    histogram = request.drafts_histogram or []
    return max((drafts for drafts, rounds in enumerate(histogram) if rounds), default=None)
