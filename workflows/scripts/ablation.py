"""One ablation: its table, and the figure that draws it."""

import importlib
from pathlib import Path

from _entry import entry

from tfm_bench.measure.invariants import check_invariants
from tfm_bench.report.ablation_data import read_ablation
from tfm_bench.report.style import save_figure
from tfm_bench.report.tables import write_table

with entry(snakemake.log[0]):
    decode, probe = (Path(file) if (file := snakemake.input.get(key)) else None for key in ("decode", "probe"))
    if decode is not None:
        check_invariants([decode])
    report = importlib.import_module(f"tfm_bench.report.ablations.{snakemake.wildcards.ablation}")
    data = read_ablation(decode, probe)
    table = report.table(data)
    figure = report.figure(table, report.note(data))
    write_table(table, **{kind: Path(snakemake.output[kind]) for kind in ("csv", "markdown", "latex")})
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
