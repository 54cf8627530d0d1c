"""Speedups of every arm."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.speedup import table_speedup
from tfm_bench.report.tables import Best, write_table

with entry(snakemake.log[0]):
    table = table_speedup(read_decode_table(Path(snakemake.input[0])))
    best = Best("speedup", by=("dataset", "temperature"))
    write_table(table, **{kind: Path(path) for kind, path in snakemake.output.items()}, best=best)
