"""Check timed kernels against the limits of their device."""

from pathlib import Path

import pandas as pd
from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.invariants import check_roofline

with entry(snakemake.log[0]):
    path = Path(snakemake.input[0])
    checked = check_roofline(pd.read_csv(path), path)
    write_text(Path(snakemake.output[0]), checked.to_csv(index=False, lineterminator="\n"))
