"""Compare this run with a stored one; exit code 1 for a regression."""

import sys
from pathlib import Path

from _entry import entry

with entry(snakemake.log[0]):
    from tfm_bench.measure.regression import regression

    code = regression(Path(snakemake.params.folder), Path(snakemake.params.baseline), Path(snakemake.params.table))
sys.exit(code)
