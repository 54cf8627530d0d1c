from tfm_bench.prompts.sources import DATASETS


rule prepare_dataset:
    """The paper's selection from a public data set, worded as prompts, and a manifest of where they come from."""
    output:
        prompts="checkpoints/{stack}/prompts/{dataset}.{split}.jsonl",
        manifest="checkpoints/{stack}/prompts/{dataset}.{split}.manifest.json",
    log:
        "logs/prepare_dataset/{stack}.{dataset}.{split}.log",
    wildcard_constraints:
        stack=r"[a-z0-9][a-z0-9_-]*",
        dataset="|".join(DATASETS),
    conda:
        "../environment.yml"
    params:
        version=family_version("prompts.prepare"),
        wording=CONFIGS[RUN].stack.wording or "tfm",
        pins=dataset_pin,
    script:
        "scripts/prepare_dataset.py"
