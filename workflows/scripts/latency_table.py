"""The records of the latency benchmark as one table."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.latency_records import latency_table, read_latency_records

with entry(snakemake.log[0]):
    table = latency_table(read_latency_records(Path(snakemake.input[0])))
    write_text(Path(snakemake.output[0]), table.to_csv(index=False, lineterminator="\n"))
