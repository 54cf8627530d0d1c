"""The records of all kernel arms as one table."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.kernel_records import kernel_table, read_kernel_records

with entry(snakemake.log[0]):
    table = kernel_table(read_kernel_records(Path(snakemake.input[0])))
    write_text(Path(snakemake.output[0]), table.to_csv(index=False, lineterminator="\n"))
