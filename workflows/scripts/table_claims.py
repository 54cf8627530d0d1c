"""The paper's claims against this run."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.report.claim_measures import MEASURES, read_tables
from tfm_bench.report.claims import read_claims, table_claims
from tfm_bench.report.tables import to_markdown

with entry(snakemake.log[0]):
    files = {name: Path(file) for name, file in snakemake.input.items() if name != "claims"}
    table = table_claims(read_claims(Path(snakemake.input.claims)), MEASURES, read_tables(files))
    write_text(Path(snakemake.output.csv), table.to_csv(index=False, lineterminator="\n"))
    write_text(Path(snakemake.output.markdown), to_markdown(table))
