"""How busy other processes kept the machine's cores, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
LEAST_SECONDS = 0.5  # the kernel counts in hundredths of a second
WARN_CORES = 0.3
IDLE_FIELDS = (3, 4)  # idle, iowait
COUNTED_FIELDS = 8  # user to steal; guest time is part of user time


class LoadMeter:
    """Watches from its creation on. Time that a hypervisor gives to other machines counts as foreign too."""

    def __init__(self) -> None:
        self._start = _seconds()

    def foreign_load(self) -> float | None:
        """Cores busy with other processes, on average so far; None without /proc and when too little time passed."""
        start, end = self._start, _seconds()
        if start is None or end is None or end[0] - start[0] < LEAST_SECONDS:
            return None
        elapsed, busy, own = (late - early for early, late in zip(start, end, strict=True))
        return max(0.0, busy - own) / elapsed


def _seconds() -> tuple[float, float, float] | None:
    """(clock, busy time of all cores, time of this process), or None where /proc/stat cannot be read."""
    try:
        fields = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1 : COUNTED_FIELDS + 1]
    except OSError:
        return None
    ticks = sum(int(field) for index, field in enumerate(fields) if index not in IDLE_FIELDS)
    own = os.times()
    return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), sum(own[:4])
