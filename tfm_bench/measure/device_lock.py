"""One measurement per device: a second measuring process waits, whoever started it."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_path(device: str) -> Path:
    """The lock file of a device, in the folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"tfm-bench.{re.sub(r'[^a-z0-9]+', '-', device.lower())}.lock"


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Hold the device; say so once on stderr when another process has it. The kernel frees it however this one ends."""
    # Read-only: another user's lock file may be opened, not written.
    descriptor = os.open(lock_path(device), os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process measures on {device}; waiting for {lock_path(device)}", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
