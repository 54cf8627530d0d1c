"""Building this package's C++ on first use: one compiler call a file, cached by content.

Torch's extension builder would do the same through torch's own headers: half a minute a file instead of two seconds,
and a second tool (ninja). The sources here need no torch: they take plain pointers through ctypes.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SHARED = Path(__file__).parent
# Fast maths without its finite-only part: the sources rely on infinities.
FLAGS = [
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"),
]

logger = logging.getLogger(__name__)


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """The compiled source, or None where no compiler ($CXX, else c++) can build it; that is logged once."""
    try:
        return ctypes.CDLL(str(build(source, os.environ.get("CXX", "c++"))))
    except (OSError, subprocess.CalledProcessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
        logger.warning("%s was not compiled (%s): a slower torch path takes its place", source.name, detail[0])
        return None


def build(source: Path, compiler: str) -> Path:
    """Path of the shared library of `source`, compiled unless cached. Raises OSError or CalledProcessError."""
    # Compiler version and instruction set show in the predefined macros, so a shared home directory does no harm.
    macros = run([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    headers = [path.read_bytes() for folder in (SHARED, source.parent) for path in sorted(folder.glob("*.h"))]
    content = b"".join([macros.encode(), " ".join(FLAGS).encode(), source.read_bytes(), *headers])
    library = cache_directory() / f"{source.stem}_{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        # Built aside and renamed: a killed build leaves no lock and no half-written library, and two may race.
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            built = Path(scratch) / library.name
            command = [compiler, *FLAGS, "-shared", "-fPIC", "-I", str(SHARED), str(source), "-o", str(built)]
            run(command)
            built.replace(library)
    return library


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cache_directory() -> Path:
    """Where torch keeps compiled extensions ($TORCH_EXTENSIONS_DIR or its default in the user's cache)."""
    from torch.utils.cpp_extension import get_default_build_root  # imports setuptools: only when needed

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()) / "tfm_bench"
