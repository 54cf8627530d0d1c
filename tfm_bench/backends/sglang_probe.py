"""Run by the interpreter of an SGLang installation: prints what that installation has, as JSON in its last line.

Arguments: names of speculative algorithms. Imports nothing of tfm_bench, which need not be installed there.
"""

import argparse
import json
import platform
import re
import sys
from importlib import metadata

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


def has_algorithm(name: str) -> bool:
    """Whether the server would accept it, be it built in or registered by a plugin."""
    try:
        SpeculativeAlgorithm.from_string(name)
    except ValueError:
        return False
    return True


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def commit(package: str) -> dict[str, str]:
    """The commit that pip recorded for a package installed from git."""
    try:
        record = metadata.distribution(package).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    found = json.loads(record or "{}").get("vcs_info", {}).get("commit_id")
    return {f"{package}_commit": found} if found else {}


def device() -> str | None:
    """Name of the first GPU."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


load_plugins()
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
packages = {name: version(name) for name in ("sglang", "torch", "transformers", "numpy")}
found = {
    "algorithms": [name for name in sys.argv[1:] if has_algorithm(name)],
    "flags": sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", parser.format_help()))),
    "versions": {"python": platform.python_version(), **packages, **commit("sglang")},
    "device": device(),
}
print(json.dumps(found))
