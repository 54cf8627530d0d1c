"""Gather the records of all cells in one table."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.records import decode_table

with entry(snakemake.log[0]):
    table = decode_table(map(Path, snakemake.input))
    write_text(Path(snakemake.output[0]), table.to_csv(index=False, lineterminator="\n"))
