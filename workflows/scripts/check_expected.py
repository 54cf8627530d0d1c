"""Say which marks of which figures moved against the committed run."""

import sys
from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.report.expected import check_expected

with entry(snakemake.log[0]):
    moved, lines = check_expected(Path("results"), Path("results/expected"))
    write_text(Path(snakemake.params.table), moved.to_csv(index=False, lineterminator="\n"))
    print("\n".join(lines), file=sys.stderr)
    print(f"the marks that moved stand in {snakemake.params.table}", file=sys.stderr)
