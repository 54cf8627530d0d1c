"""Which arms an SGLang installation can run, asked of the installation itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError, model_validator

from tfm_bench.backends.flags import ALGORITHMS, ServerArm, method_flags
from tfm_bench.backends.process import in_one_line
from tfm_bench.backends.settings import ServerStack, SglangSettings
from tfm_bench.errors import UserError

PROBE = Path(__file__).with_name("sglang_probe.py")
# A folder that happens to have the name is found too, but has no origin.
FIND = """
import importlib.util, sys
spec = importlib.util.find_spec("sglang")
if spec is None or spec.origin is None:
    sys.exit("No module named 'sglang'")
"""
TIMEOUT_S = 300  # importing SGLang reads gigabytes of libraries from a cold disk


class Installation(BaseModel):
    """algorithms: those of ALGORITHMS that it has; flags: all arguments of its server; device: its first GPU's name.

    versions: of Python and packages, and as "sglang_commit" the commit of an SGLang that was installed from git.
    """

    algorithms: list[str]
    flags: list[str]
    versions: dict[str, str]
    device: str | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "sglang" not in self.versions:
            raise ValueError("versions: sglang is not there")
        return self


def require_installation(settings: SglangSettings) -> None:
    """Raises UserError where `python` cannot be run or has no SGLang. Imports nothing of it: takes a moment only."""
    _ask(settings.python, "-c", FIND)


def detect(python: str) -> Installation:
    """Raises UserError where `python` cannot be run or has no SGLang that can be imported."""
    names = sorted({name for name in ALGORITHMS.values() if name})
    try:
        return Installation.model_validate_json(_ask(python, str(PROBE), *names).rstrip("\n").rpartition("\n")[2])
    except ValidationError:
        raise UserError(f"sglang.python: {python} gave no description of its SGLang") from None


def _ask(python: str, *arguments: str) -> str:
    """What the interpreter prints, with the last line of its stderr as the reason where it fails."""
    try:
        # -P: else the folder of the probe comes first on the path, and the sglang.py in it before SGLang.
        return subprocess.run(
            [python, "-P", *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=True,
        ).stdout
    except OSError as error:
        raise UserError(f"sglang.python: {python} cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"sglang.python: {python} did not import SGLang within {TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        reason = in_one_line((error.stderr.strip().splitlines() or [""])[-1]) or f"exit code {error.returncode}"
        raise UserError(
            f"sglang.python: {python} has no working SGLang ({reason}); see environment-sglang.yml"
        ) from None


def why_unsupported(installation: Installation, stack: ServerStack, arm: ServerArm) -> str | None:
    """What the installation lacks for `arm`; None where it has everything."""
    version = installation.versions["sglang"]
    if arm.algorithm and arm.algorithm not in installation.algorithms:
        return f"SGLang {version} has no speculative algorithm {arm.algorithm}"
    missing = [flag for flag in method_flags(stack, arm) if flag.startswith("--") and flag not in installation.flags]
    return f"SGLang {version} has no flag {missing[0]}" if missing else None
