"""Check the records of all cells."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.invariants import check_invariants

with entry(snakemake.log[0]):
    checked = check_invariants(map(Path, snakemake.input.records))
    write_text(Path(snakemake.output[0]), checked.to_csv(index=False, lineterminator="\n"))
