rule decode_cell:
    """Decode the prompts of one split, dataset and temperature with every method, in one process."""
    input:
        cell_files,
    output:
        records="results/{suite}raw/{split}.{dataset}.t{temperature}.r{repeat}.jsonl",
        rounds="results/{suite}raw/{split}.{dataset}.t{temperature}.r{repeat}.rounds.jsonl",
    log:
        "logs/{suite}decode_cell/{split}.{dataset}.t{temperature}.r{repeat}.log",
    benchmark:
        "logs/{suite}decode_cell/{split}.{dataset}.t{temperature}.r{repeat}.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=[family_version(name) for name in ("measure.cells", "measure.records")],
        settings=cell_params,
    script:
        "scripts/decode_cell.py"
