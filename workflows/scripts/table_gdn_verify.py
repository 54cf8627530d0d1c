"""Fused verification against recurrences, and the paper's figures."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.kernel_records import read_kernel_table
from tfm_bench.report.gdn_verify import table_gdn_verify
from tfm_bench.report.tables import write_table

with entry(snakemake.log[0]):
    table = table_gdn_verify(read_kernel_table(Path(snakemake.input[0])))
    write_table(table, **{kind: Path(path) for kind, path in snakemake.output.items()})
