"""Stages of a round at real shapes, and projected speedups."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.latency_records import read_latency_table
from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.latency import table_latency
from tfm_bench.report.tables import write_table

with entry(snakemake.log[0]):
    latency = read_latency_table(Path(snakemake.input.latency))
    table = table_latency(latency, read_decode_table(Path(snakemake.input.acceptance)))
    write_table(table, **{kind: Path(path) for kind, path in snakemake.output.items()})
