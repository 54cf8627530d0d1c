"""Memory from verification to commit: the figure, and the numbers in it."""

from pathlib import Path

from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.measure.kernel_records import read_kernel_table
from tfm_bench.report.figures.gdn_state_memory import figure_gdn_state_memory, plotted_state_memory
from tfm_bench.report.style import save_figure

with entry(snakemake.log[0]):
    data = plotted_state_memory(read_kernel_table(Path(snakemake.input[0])))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure_gdn_state_memory(data), pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
