"""Measure all arms of the latency benchmark."""

from pathlib import Path

from _entry import entry

from tfm_bench.config import LatencySettings

with entry(snakemake.log[0]):
    from tfm_bench.measure.latency import latency_cell

    latency_cell(LatencySettings.model_validate(snakemake.params.settings), Path(snakemake.output[0]))
