"""Replies of /generate in the form of OpenAI's /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any


def completion(reply: dict[str, Any], model: str) -> dict[str, Any]:
    """A whole answer."""
    return _object(reply, model, reply["text"]) | {"usage": _usage(reply)}


async def chunks(
    replies: AsyncIterator[dict[str, Any]], model: str, include_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """What each reply adds to the one before; with include_usage the token counts follow in a chunk of their own."""
    sent, reply = "", None
    async for reply in replies:
        text = reply["text"]
        # A token may be part of a character, which shows as a replacement mark until the rest of it is there.
        complete = text if reply["meta_info"]["finish_reason"] else text.rstrip("\ufffd")
        yield _object(reply, model, complete[len(sent) :])
        sent = complete
    if include_usage and reply is not None:
        yield _object(reply, model, "") | {"choices": [], "usage": _usage(reply)}


def _object(reply: dict[str, Any], model: str, text: str) -> dict[str, Any]:
    meta = reply["meta_info"]
    reason = meta["finish_reason"]["type"] if meta["finish_reason"] else None
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return {
        "id": meta["id"],
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
    }


def _usage(reply: dict[str, Any]) -> dict[str, int]:
    prompt, new = (reply["meta_info"][f"{kind}_tokens"] for kind in ("prompt", "completion"))
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
