"""Accepted drafts, method against method."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.records import read_decode_table
from tfm_bench.report.acceptance import table_acceptance_ratio
from tfm_bench.report.tables import Best, write_table

with entry(snakemake.log[0]):
    table = table_acceptance_ratio(read_decode_table(Path(snakemake.input[0])))
    best = Best("accepted_drafts_ratio", by=("dataset", "temperature", "budget", "baseline", "prompt_selection"))
    write_table(table, **{kind: Path(path) for kind, path in snakemake.output.items()}, best=best)
