"""What the measuring of one ablation left, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tfm_bench.measure.files import read_json_lines
from tfm_bench.measure.probe_records import ProbeRecord
from tfm_bench.measure.records import decode_table
from tfm_bench.measure.rounds import RoundsRecord, read_rounds, rounds_path


@dataclass(frozen=True)
class AblationData:
    """decode: a row per record, in the order of the raw files; rounds: their companions, in the same order as written.

    probe: what a probe measured; empty where the ablation has none, as decode is where it only has a probe.
    """

    decode: pd.DataFrame
    rounds: list[RoundsRecord]
    probe: list[ProbeRecord]


def read_ablation(decode: Path | None, probe: Path | None) -> AblationData:
    """Raises UserError naming file and line of what is damaged."""
    return AblationData(
        decode=pd.DataFrame() if decode is None else decode_table([decode]),
        rounds=[] if decode is None else read_rounds(rounds_path(decode)),
        probe=[] if probe is None else read_json_lines(probe, ProbeRecord, "a record of a probe"),
    )


def probe_note(probe: list[ProbeRecord], what: str) -> str:
    """Device, date and stack of a probe, for the small print of its figure; `what` says n and the kind of interval."""
    origin: Any = probe[0].provenance
    date = f"{origin.measured_at:%Y-%m-%d}"
    return f"Measured {date} on {origin.device}, {origin.threads} threads; stack {probe[0].settings.stack.name}; {what}"
