"""The arms of a server stack, and the command line that starts a server of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfm_bench.backends.ports import HOST
from tfm_bench.backends.process import in_one_line
from tfm_bench.backends.settings import ModelSource, ServerCellSettings, ServerStack
from tfm_bench.config import TREE_METHODS, expansion_width

LAUNCHER = "sglang.launch_server"
# DFLASH is in SGLang, DFLASH_TFM in a fork, where it drafts either kind of tree.
ALGORITHMS: dict[str, str | None] = {"ar": None, "dflash_chain": "DFLASH", "ddtree": "DFLASH_TFM", "tfm": "DFLASH_TFM"}
PROPOSALS = {"ddtree": "ddtree", "tfm": "weaver"}
PROPOSAL_FLAG = "--speculative-dflash-tfm-proposal"
# What /get_server_info must repeat: had a server fallen back to other drafting, one of these would differ.
CONFIRMED = (
    "--speculative-algorithm",
    "--speculative-num-draft-tokens",
    "--speculative-dflash-tfm-tree-budget",
    PROPOSAL_FLAG,
)


@dataclass(frozen=True)
class ServerArm:
    """A method with its settings, as in tfm_bench.engine.Arm."""

    method: str
    budget: int = 0
    expansion_width: int = 0

    @property
    def algorithm(self) -> str | None:
        """SGLang's name for the method; None is plain decoding."""
        return ALGORITHMS[self.method]

    @property
    def slug(self) -> str:
        """For file names."""
        return f"{self.method}-{self.budget}"


AR = ServerArm("ar")


def server_arms(settings: ServerCellSettings) -> list[ServerArm]:
    """All arms of a cell, `ar` first. The chain has the drafter's whole block, the only one that servers draft."""
    arms = [AR]
    if "dflash_chain" in settings.methods:
        arms.append(ServerArm("dflash_chain", settings.stack.block_size - 1))
    for method in TREE_METHODS:
        for budget in settings.budgets if method in settings.methods else []:
            # The fork has no flag for it; this is what it computes from the budget.
            width = expansion_width("auto", budget) if method == "tfm" else 0
            arms.append(ServerArm(method, budget, width))
    return arms


def launch_command(settings: ServerCellSettings, arm: ServerArm, port: int) -> list[str]:
    """Arguments that start a server of `arm`; no shell reads them."""
    flags = settings.sglang.flags
    return [
        settings.sglang.python,
        "-m",
        LAUNCHER,
        *_source_flags("--model-path", "--revision", settings.stack.target),
        *("--host", HOST, "--port", str(port), "--dtype", settings.stack.dtype),
        *flags.common,
        *getattr(flags, arm.method),
        *method_flags(settings.stack, arm),
    ]


def method_flags(stack: ServerStack, arm: ServerArm) -> list[str]:
    """What makes a server decode by `arm`."""
    if arm.algorithm is None:
        return []
    source = _source_flags("--speculative-draft-model-path", "--speculative-draft-model-revision", stack.drafter)
    flags = ["--speculative-algorithm", arm.algorithm, *source]
    if arm.method == "dflash_chain":
        rows = str(arm.budget + 1)
        return [*flags, "--speculative-dflash-block-size", rows, "--speculative-num-draft-tokens", rows]
    flags += ["--speculative-dflash-tfm-tree-budget", str(arm.budget)]
    if arm.method == "tfm":
        assert stack.weaver is not None
        return [*flags, "--speculative-dflash-tfm-path", stack.weaver]
    return [*flags, PROPOSAL_FLAG, PROPOSALS[arm.method]]


def contradiction(info: Mapping[str, Any], stack: ServerStack, arm: ServerArm) -> str | None:
    """What a server's /get_server_info says against `arm`; None where it is the arm that was asked for."""
    flags = method_flags(stack, arm)
    asked = dict(zip(flags[::2], flags[1::2], strict=True)) or {"--speculative-algorithm": "NONE"}
    if arm.method == "tfm" and _key(PROPOSAL_FLAG) in info:  # the fork's first release knew no other
        asked[PROPOSAL_FLAG] = PROPOSALS["tfm"]
    for flag in CONFIRMED:
        found = "NONE" if info.get(_key(flag)) is None else str(info[_key(flag)])
        if flag in asked and found.upper() != asked[flag].upper():
            return f"{_key(flag)}: asked for {asked[flag]}, the server runs {in_one_line(found)}"
    return None


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _source_flags(path_flag: str, revision_flag: str, source: ModelSource) -> list[str]:
    return [path_flag, source.path, *([revision_flag, source.revision] if source.revision else [])]
