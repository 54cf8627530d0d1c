"""Parameters of SGLang and OpenAI that the server knows of but has no use for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Values at which a parameter changes nothing; null is one for all. Any other one is refused: sampling is from the whole
# distribution, and ends at stop ids and the length limit only.
NEUTRAL: dict[str, Any] = {
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "custom_logit_processor": "",
    "custom_params": {},
    "watermark": None,
    "min_new_tokens": 0,
    "min_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "stop_regex": [],
    "no_stop_trim": False,
    "n": 1,
    "best_of": 1,
    "beam_width": 1,
    "echo": False,
    "suffix": "",
    "response_format": {"type": "text"},
    "regex": "",
    "json_schema": "",
    "ebnf": "",
    "structural_tag": "",
    "logprobs": None,  # OpenAI's 0 asks for those of the sampled tokens
    "top_logprobs": 0,
    "return_logprob": False,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "token_ids_logprob": [],
    "return_text_in_logprobs": False,
    "return_hidden_states": False,
    "return_routed_experts": False,
    "return_token_ids": False,
    "return_prompt_token_ids": False,
    "return_entropy": False,
    "input_embeds": [],
    "image_data": [],
    "video_data": [],
    "audio_data": [],
    "modalities": [],
    "lora_path": "",
    "session_params": {},
    "stream_interval": None,
    "continuous_usage_stats": False,
    "include_obfuscation": False,
}
UNUSED = frozenset(
    {
        "cache_salt",
        "custom_labels",
        "extra_key",
        "log_metrics",
        "no_logs",
        "priority",
        "rid",
        "session_id",
        "spaces_between_special_tokens",  # of slow tokenizers only
        "user",
    }
)


def require_neutral(extras: Mapping[str, Any]) -> None:
    """Raises ValueError for a parameter that is not known, and for a value that asks for what is not done here."""
    for key, value in extras.items():
        if key in UNUSED:
            continue
        if key not in NEUTRAL:
            raise ValueError(f"{key}: unknown key")
        if value != NEUTRAL[key]:
            found, neutral = repr(value)[:80], json.dumps(NEUTRAL[key])
            raise ValueError(f"{key}: found {found}, not supported here; leave it out or send {neutral}")
