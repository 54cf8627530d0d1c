"""One measurement per device: a second measuring process waits, whoever started it."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ATTEMPTS = 3  # another process may make or remove the file between two calls


def lock_path(device: str) -> Path:
    """The lock file of a device, in the folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"tfm-bench.{re.sub(r'[^a-z0-9]+', '-', device.lower())}.lock"


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Hold the device; say so once on stderr when another process has it. The kernel frees it however this one ends."""
    descriptor = _opened(lock_path(device))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process measures on {device}; waiting for {lock_path(device)}", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """A descriptor of the lock file, which is made where there is none.

    Read-only, since another user's file may not be written, and without O_CREAT where it exists: in a sticky folder
    Linux refuses that on another user's file (fs.protected_regular), even to root.
    """
    for _ in range(ATTEMPTS):
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
        with suppress(FileExistsError):
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666)
    return os.open(path, os.O_RDONLY)
