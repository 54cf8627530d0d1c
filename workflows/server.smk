rule server_cell:
    """Decode the prompts of one split, dataset and temperature with every method, a server each."""
    input:
        server_files,
    output:
        records="results/{suite}raw/{split}.{dataset}.t{temperature}.r{repeat}.jsonl",
        requests="results/{suite}raw/{split}.{dataset}.t{temperature}.r{repeat}.requests.jsonl",
    log:
        "logs/{suite}server_cell/{split}.{dataset}.t{temperature}.r{repeat}.log",
    benchmark:
        "logs/{suite}server_cell/{split}.{dataset}.t{temperature}.r{repeat}.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=[family_version(name) for name in ("backends.server_cell", "measure.records")],
        settings=server_params,
    script:
        "scripts/server_cell.py"


rule table_protocols:
    """The same requests by our protocol and by that of the paper's benchmark."""
    input:
        requests=companion_files,
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}tables/protocols.csv",
        markdown="results/{suite}tables/protocols.md",
        latex="results/{suite}tables/protocols.tex",
    log:
        "logs/{suite}table_protocols.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("backends.protocols"),
        format=family_version("report.tables"),
    script:
        "scripts/table_protocols.py"
