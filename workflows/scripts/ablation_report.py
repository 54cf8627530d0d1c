"""One ablation: its table, and the figure that draws it."""

from pathlib import Path

from _entry import entry

from tfm_bench.report.ablation_report import ablation_report

with entry(snakemake.log[0]):
    raw, output = ({name: Path(file) for name, file in files.items()} for files in (snakemake.input, snakemake.output))
    ablation_report(snakemake.wildcards.ablation, raw, output)
