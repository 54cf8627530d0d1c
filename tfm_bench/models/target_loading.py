"""Building the target with transformers: local files only, strictly, and only families whose forward is ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from tfm_bench.errors import UserError
from tfm_bench.models.checkpoints import Shapes, check_shapes, read_json, stored_shapes, weight_files

HYBRID, DENSE = "qwen3_5_text", "qwen3"
# Rotary tables are made once per sequence: forms that change with its length are left out.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

# Repositories that hold more than a language model: Qwen3.5 and Qwen3.6 with vision tower and multi-token prediction.
MULTIMODAL = "qwen3_5"
BODY, TEXT_PREFIX, UNUSED_PREFIXES = "model.", "model.language_model.", ("model.visual.", "mtp.")
HEAD = "lm_head.weight"

# Far above any published model, and low enough that no product of two overflows.
SIZES = dict.fromkeys(
    [
        "vocab_size", "hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ],
    2**24,
) | {"num_hidden_layers": 1024}  # fmt: skip
# What transformers and torch raise for keys of a wrong type or value.
UNUSABLE = (
    OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, AssertionError,
    StrictDataclassError,
)  # fmt: skip


def load_model(path: str | Path, dtype: torch.dtype) -> Any:
    """A transformers causal LM without gradients; of a multimodal checkpoint, its language model.

    Names and shapes are checked before a tensor is read. Raises UserError for whatever is wrong with the folder.
    """
    disable_progress_bar()  # one per process would stand between the lines of a run
    multimodal = read_json(Path(path) / "config.json").get("model_type") == MULTIMODAL
    found = stored_shapes(weight_files(path))
    config = text_config(path)
    with _one_line(path):
        expected = expected_shapes(config, tied_head=HEAD in found)
        check_shapes(*(_language_model(expected, found) if multimodal else (expected, found)), path)
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    _check_report(report, path)
    return model.eval().requires_grad_(False)


def expected_shapes(config: Any, *, tied_head: bool = False) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a text-only causal LM; with `tied_head` also of a head that is the embedding."""
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(config).state_dict()
    if config.tie_word_embeddings and not tied_head:
        del state[HEAD]
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def text_config(path: str | Path) -> Any:
    """The language model's config. In a multimodal one, either level may say that embedding and head are one.

    Raises UserError for a config.json that is missing, or that no model can be built from.
    """
    _check_sizes(Path(path) / "config.json")
    with _one_line(path):
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        text = config.get_text_config()
        text.tie_word_embeddings = text.tie_word_embeddings or config.tie_word_embeddings
    theta = (text.rope_parameters or {}).get("rope_theta", 1.0)
    for key, value in (("rms_norm_eps", text.rms_norm_eps), ("rope_theta", theta)):
        if not (isinstance(value, int | float) and 0 < value < math.inf):
            raise UserError(f"{path}: key {key} is {value!r}; accepted is a finite number above 0.")
    return text


def _check_sizes(path: Path) -> None:
    """Before transformers makes as many of anything as config.json says. Raises UserError."""
    values = read_json(path)
    nested = values.get("text_config")
    for key, most in SIZES.items():
        for level in (values, nested if isinstance(nested, dict) else {}):
            size = level.get(key)
            if size is not None and not (type(size) is int and 1 <= size <= most):
                raise UserError(f"{path}: key {key} is {repr(size)[:80]}; accepted is 1 to {most}.")


@contextmanager
def _one_line(path: str | Path) -> Iterator[None]:
    """Whatever transformers makes of a checkpoint, as one UserError."""
    try:
        yield
    except UNUSABLE as error:
        first, *others = str(error).strip().splitlines() or [type(error).__name__]
        # Where a field is wrong, its value stands in the second line.
        reason = " ".join([first, *(line.strip() for line in others[:1] if first.endswith(":"))])
        raise UserError(f"{path}: transformers cannot build a model from it ({reason}).") from error


def _language_model(expected: Shapes, found: Shapes) -> tuple[Shapes, Shapes]:
    """Both as a multimodal checkpoint has them: the body one level down, and what is found without the unused parts."""
    nested = {
        name.replace(BODY, TEXT_PREFIX, 1) if name.startswith(BODY) else name: expected[name] for name in expected
    }
    return nested, {name: shape for name, shape in found.items() if not name.startswith(UNUSED_PREFIXES)}


def is_hybrid(config: Any) -> bool:
    """Whether a supported model mixes Gated DeltaNet and attention. Raises UserError for what is not supported."""
    accepted = {
        "model_type": (HYBRID, DENSE),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "attn_output_gate": (True, None),
        "rope_type": ROPE_TYPES,
    }
    found = {key: getattr(config, key, None) for key in accepted}
    found["rope_type"] = (config.rope_parameters or {}).get("rope_type", "default")
    for key, values in accepted.items():
        if found[key] not in values:
            raise UserError(f"target: key {key} is {found[key]!r}; accepted is {' or '.join(map(repr, values))}.")
    if "sliding_attention" in config.layer_types:
        raise UserError(
            "target: key layer_types has sliding_attention; accepted are full_attention and linear_attention."
        )
    return config.model_type == HYBRID


def _check_report(report: dict[str, Any], path: str | Path) -> None:
    """transformers fills gaps with random weights and only warns; here they are errors."""
    problems = [
        f"tensor {name} has shape {list(found)}, config.json asks for {list(wanted)}"
        for name, found, wanted in sorted(report["mismatched_keys"])
    ]
    problems += [f"tensor {name} is missing" for name in sorted(report["missing_keys"])]
    problems += [f"tensor {name} is unexpected" for name in sorted(report["unexpected_keys"])]
    if problems:
        raise UserError(f"{path}: {'; '.join(problems)}; the file and its config.json do not belong together.")
