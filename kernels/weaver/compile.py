"""Building the C++ of this package on first use: one compiler call, cached by content."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("weaver_tree.cpp")
# Fast maths without its finite-only part: the source relies on infinities.
FLAGS = [
    *("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"),
]

logger = logging.getLogger(__name__)


@cache
def load_library() -> ctypes.CDLL | None:
    """The compiled tree builder, or None where no compiler ($CXX, else c++) can build it; that is logged once."""
    try:
        return ctypes.CDLL(str(build(os.environ.get("CXX", "c++"))))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
        logger.warning("%s was not compiled (%s): Weaver trees take the slower torch path", SOURCE.name, detail[0])
        return None


def build(compiler: str) -> Path:
    """Path of the shared library, compiled unless cached. Raises OSError or CalledProcessError."""
    # Compiler version and instruction set show in the predefined macros, so a shared home directory does no harm.
    macros = run([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    key = hashlib.sha256(macros.encode() + SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    library = cache_directory() / f"weaver_tree_{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        # Built aside and renamed: a killed build leaves no lock and no half-written library, and two may race.
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            built = Path(scratch) / library.name
            run([compiler, *FLAGS, "-shared", "-fPIC", str(SOURCE), "-o", str(built)])
            built.replace(library)
    return library


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cache_directory() -> Path:
    """Where torch keeps compiled extensions ($TORCH_EXTENSIONS_DIR or its default in the user's cache)."""
    from torch.utils.cpp_extension import get_default_build_root  # imports setuptools: only when needed

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()) / "tfm_bench"
