"""A server process that is gone when its block is left, in whatever way that is, with all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from tfm_bench.errors import UserError

GRACE_S = 10.0  # between SIGTERM and SIGKILL
TAIL_LINES = 30
TAIL_BYTES = 65_536
REASON_LENGTH = 300
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def server_process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` as the leader of a process group of its own, its output added to `log`; stop the group at the end.

    ctrl-C and SIGTERM end the block like any exception. Where this process is killed outright, Linux kills the leader.
    Raises UserError where the command cannot be run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with _sigterm_exits(), log.open("ab") as output:
        process = _start(command, output)
        try:
            yield process
        finally:
            _stop_group(process)


def log_tail(log: Path, start: int = 0) -> list[str]:
    """The last lines that are not blank, of what stands in `log` from byte `start` on."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]


def in_one_line(text: str) -> str:
    """What another program wrote as a part of a reason: its beginning, REASON_LENGTH printable characters at most."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:REASON_LENGTH]


def _start(command: Sequence[str], output: BinaryIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run ({error.strerror})") from None


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        # Whatever the leader has left behind, and the leader where it did not heed.
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that blocks are left in order. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
