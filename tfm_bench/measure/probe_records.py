"""Records of probes: what ablations measure beside decoding. One JSON line per observation."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, cast

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict

from tfm_bench.ablations import ProbeSettings
from tfm_bench.engine import Stack
from tfm_bench.measure.cells import checkpoint_sha256, load_stack
from tfm_bench.measure.device_lock import device_lock
from tfm_bench.measure.files import write_text
from tfm_bench.measure.provenance import Provenance, collect_provenance
from tfm_bench.models.device import choose_device

VERSION = 1
Observation = dict[str, Any]


class Probe(Protocol):
    """tfm_bench.measure.probes.<ablation>.probe: yields observations, flat mappings to numbers and text."""

    def __call__(self, stack: Stack, settings: ProbeSettings) -> Iterable[Observation]: ...


class ProbeRecord(BaseModel):
    """One observation with its origin. values: its columns, explained in the probe's module."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    values: Observation
    checkpoint_sha256: str
    settings: ProbeSettings
    provenance: Provenance


def ablation_probe(settings: ProbeSettings, output: Path) -> None:
    """Run the probe of an ablation and write its observations. Waits while another process measures on the device."""
    probe = cast(Probe, importlib.import_module(f"tfm_bench.measure.probes.{settings.ablation}").probe)
    torch.set_num_threads(settings.stack.threads)
    with device_lock(choose_device(settings.stack.device).type):
        stack = load_stack(settings.stack)
        origin = {
            "checkpoint_sha256": checkpoint_sha256(Path(settings.stack.path)),
            "settings": settings,
            "provenance": collect_provenance(stack.device),
        }
        records = [ProbeRecord(values=values, **origin) for values in probe(stack, settings)]
    write_text(output, "".join(record.model_dump_json() + "\n" for record in records))


def probe_table(records: list[ProbeRecord]) -> pd.DataFrame:
    """Observations, a row each."""
    return pd.DataFrame([record.values for record in records])
