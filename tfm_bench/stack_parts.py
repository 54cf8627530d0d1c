"""What stands between a folder of checkpoints and a stack: its memory on a GPU, parts that fit, the tokenizer."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tfm_bench.errors import UserError
from tfm_bench.models.capacity import Capacity
from tfm_bench.models.dflash_config import DFlashConfig
from tfm_bench.models.dflash_runtime import DrafterRuntime
from tfm_bench.models.memory_plan import StackConfigs, memory_plan, plan_table, require_memory
from tfm_bench.models.target import Target
from tfm_bench.models.target_layers import GdnLayer
from tfm_bench.models.target_loading import is_hybrid, text_config
from tfm_bench.models.weaver import Weaver


def announce_memory(
    directory: Path, weaver: Weaver | None, dtype: torch.dtype, gdn: tuple[str, str], capacity: Capacity
) -> None:
    """Prints the memory plan; raises UserError with the number of GB that the GPU lacks. gdn: verify and commit."""
    # Graphs and what they record hold each other: an earlier stack of this process may still stand there.
    gc.collect()
    torch.cuda.empty_cache()
    configs = StackConfigs(
        text_config(directory / "target"),
        DFlashConfig.from_file(directory / "drafter"),
        None if weaver is None else weaver.config,
    )
    plan = memory_plan(configs, dtype, capacity, gdn_verify=gdn[0], commit=gdn[1])
    print(plan_table(plan), end="", file=sys.stderr)
    require_memory(plan, torch.cuda.mem_get_info()[0], torch.cuda.get_device_name())


def check_fit(directory: Path, target: Target, drafter: DrafterRuntime, weaver: Weaver | None) -> None:
    """Raises UserError for a drafter or Weaver that was made for another target."""
    width, config = target.hidden_size, drafter.config
    wanted: list[tuple[str, str, int | None, int, str]] = [
        ("drafter", "hidden_size", config.hidden_size, width, "width"),
        ("drafter", "num_target_layers", config.num_target_layers, len(target.layers), "number of layers"),
        ("drafter", "vocab_size", config.vocab_size, target.vocab_size, "number of token ids"),
    ]
    if weaver is not None:
        wanted.append(("weaver", "d_model", weaver.config.d_model, width, "width"))
        wanted.append(("weaver", "d_embed", weaver.config.d_embed, width, "width"))
    for part, key, found, accepted, what in wanted:
        if found is not None and found != accepted:
            raise UserError(f"{directory / part / 'config.json'}: {key} is {found}; the target's {what} is {accepted}")
    mask = config.mask_token_id
    if not 0 <= mask < target.vocab_size:
        file = directory / "drafter" / "config.json"
        raise UserError(f"{file}: mask_token_id is {mask}; the target has token ids 0 to {target.vocab_size - 1}")


def check_gdn(directory: Path, target: Target, gdn_verify: str | None) -> None:
    """Raises UserError where the configuration is about another kind of target."""
    has_layers = any(isinstance(layer, GdnLayer) for layer in target.layers)
    if has_layers == (gdn_verify is None):
        kind, accepted = ("has", "a method, fused for one,") if has_layers else ("has no", "null")
        raise UserError(
            f"stack.gdn_verify: found {gdn_verify or 'null'}; "
            f"{directory / 'target'} {kind} Gated-DeltaNet layers, so that {accepted} is accepted"
        )


def has_gdn(directory: Path) -> bool:
    """Whether the target has Gated-DeltaNet layers. Raises UserError where its config cannot be read."""
    return is_hybrid(text_config(directory / "target"))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder / 'tokenizer.json'}: no tokenizer could be loaded ({reason})") from None
