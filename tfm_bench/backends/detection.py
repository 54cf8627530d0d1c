"""Which arms an SGLang installation can run, asked of the installation itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tfm_bench.backends.flags import ALGORITHMS, ServerArm, method_flags
from tfm_bench.backends.settings import ServerStack
from tfm_bench.errors import UserError

PROBE = Path(__file__).with_name("sglang_probe.py")
TIMEOUT_S = 300  # importing SGLang reads gigabytes of libraries from a cold disk


class Installation(BaseModel):
    """algorithms: those of ALGORITHMS that it has; flags: all arguments of its server; device: its first GPU's name."""

    algorithms: list[str]
    flags: list[str]
    versions: dict[str, str]
    device: str | None


def detect(python: str) -> Installation:
    """Raises UserError where `python` cannot be run or has no SGLang."""
    names = sorted({name for name in ALGORITHMS.values() if name})
    try:
        # -P: else the folder of the probe comes first on the path, and the sglang.py in it before SGLang.
        done = subprocess.run(
            [python, "-P", str(PROBE), *names], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        return Installation.model_validate_json(done.stdout.rstrip("\n").rpartition("\n")[2])
    except OSError as error:
        raise UserError(f"sglang.python: {python} cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"sglang.python: {python} did not import SGLang within {TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        raise UserError(
            f"sglang.python: {python} has no working SGLang ({reason}); see environment-sglang.yml"
        ) from None
    except ValidationError:
        raise UserError(f"sglang.python: {python} gave no description of its SGLang") from None


def why_unsupported(installation: Installation, stack: ServerStack, arm: ServerArm) -> str | None:
    """What the installation lacks for `arm`; None where it has everything."""
    version = installation.versions["sglang"]
    if arm.algorithm and arm.algorithm not in installation.algorithms:
        return f"SGLang {version} has no speculative algorithm {arm.algorithm}"
    missing = [flag for flag in method_flags(stack, arm) if flag.startswith("--") and flag not in installation.flags]
    return f"SGLang {version} has no flag {missing[0]}" if missing else None
