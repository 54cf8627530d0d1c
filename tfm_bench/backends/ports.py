"""Ports of this machine: a free one, and whether it is still ours once something answers there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tfm_bench.errors import UserError

HOST = "127.0.0.1"
LISTENING = "0A"  # a state in /proc/net/tcp


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def require_free(port: int) -> None:
    """Raises UserError for a port that is taken: the health of a foreign server would pass for that of ours."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise UserError(f"port: found {port}, where another process listens already; a free one is accepted")


def is_stolen(port: int, group: int) -> bool:
    """Whether only processes outside the process group listen at the port; False where the system does not tell."""
    try:
        listeners = set(_listeners(port))
        return bool(listeners) and not any(listeners & set(_sockets(process)) for process in _members(group))
    except OSError:
        return False


def _listeners(port: int) -> Iterator[str]:
    """Sockets as they stand in /proc/PID/fd."""
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and int(address.rpartition(":")[2], 16) == port:
                yield f"socket:[{inode}]"


def _members(group: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[2]) == group:
                yield process


def _sockets(process: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                yield os.readlink(descriptor)
