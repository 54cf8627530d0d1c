"""Run the probe of one ablation."""

from pathlib import Path

from _entry import measuring

from tfm_bench.ablations import ProbeSettings

with measuring(snakemake.log[0]):
    from tfm_bench.measure.probe_records import ablation_probe

    ablation_probe(ProbeSettings.model_validate(snakemake.params.settings), Path(snakemake.output[0]))
