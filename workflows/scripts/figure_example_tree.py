"""An example tree: the figure, and the numbers in it."""

from pathlib import Path

import pandas as pd
from _entry import entry

from tfm_bench.measure.files import write_text
from tfm_bench.report.figures.example_tree import figure_example_tree, plotted_tree, tree_note
from tfm_bench.report.style import save_figure

with entry(snakemake.log[0]):
    # Tokens may read "NA" or "null": only an empty cell is a missing value.
    data = plotted_tree(pd.read_csv(snakemake.input[0], keep_default_na=False, na_values=[""]))
    figure = figure_example_tree(data, tree_note(data))
    write_text(Path(snakemake.output.csv), data.to_csv(index=False, lineterminator="\n"))
    save_figure(figure, pdf=Path(snakemake.output.pdf), png=Path(snakemake.output.png))
