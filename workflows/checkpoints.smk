rule tokenizer:
    """Byte-level BPE tokenizer of the embedded stack, and the split of its data."""
    output:
        "results/retrain/tiny/target/tokenizer.json",
    log:
        "logs/retrain/tokenizer.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    params:
        seed=0,
    script:
        "scripts/train.py"


rule target:
    """The target: a small Gated-DeltaNet hybrid, trained on text."""
    input:
        rules.tokenizer.output,
    output:
        "results/retrain/tiny/target/model.safetensors",
    log:
        "logs/retrain/target.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    params:
        seed=0,
    script:
        "scripts/train.py"


rule regenerate:
    """The target's own responses: what the drafter and Weaver learn from."""
    input:
        rules.target.output,
    output:
        # Not the responses themselves: Snakemake removes an output before it runs a rule, and the step resumes from them.
        touch("results/retrain/tiny/state/regenerate.done"),
    log:
        "logs/retrain/regenerate.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    params:
        seed=0,
    script:
        "scripts/train.py"


rule dflash:
    """The DFlash drafter, on the target's responses."""
    input:
        rules.regenerate.output,
    output:
        "results/retrain/tiny/drafter/model.safetensors",
    log:
        "logs/retrain/dflash.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    params:
        seed=0,
    script:
        "scripts/train.py"


rule weaver:
    """Weaver, on a frozen target and drafter."""
    input:
        rules.dflash.output,
    output:
        "results/retrain/tiny/weaver/model.safetensors",
    log:
        "logs/retrain/weaver.log",
    conda:
        "../environment.yml"
    threads: workflow.cores
    params:
        seed=0,
    script:
        "scripts/train.py"
