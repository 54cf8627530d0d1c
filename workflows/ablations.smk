rule ablation_cells:
    """Decode every point of one ablation, in one process."""
    input:
        ablation_files,
    output:
        records="results/{suite}raw/ablations/{ablation}.jsonl",
        rounds="results/{suite}raw/ablations/{ablation}.rounds.jsonl",
    log:
        "logs/{suite}ablations/{ablation}.log",
    benchmark:
        "logs/{suite}ablations/{ablation}.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=[family_version(name) for name in ("ablations", "measure.cells", "measure.records")],
        points=ablation_params,
    script:
        "scripts/ablation_cells.py"


rule ablation_probe:
    """Measure what an ablation needs beside decoding."""
    input:
        ablation_files,
    output:
        "results/{suite}raw/ablations/{ablation}.probe.jsonl",
    log:
        "logs/{suite}ablations/{ablation}.probe.log",
    benchmark:
        "logs/{suite}ablations/{ablation}.probe.tsv"
    conda:
        "../environment.yml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=probe_versions,
        settings=probe_params,
    script:
        "scripts/ablation_probe.py"


rule ablation_report:
    """Table and figure of one ablation, from its records."""
    input:
        unpack(ablation_raw),
    output:
        csv="results/{suite}ablation_{ablation}.csv",
        markdown="results/{suite}tables/ablation_{ablation}.md",
        latex="results/{suite}tables/ablation_{ablation}.tex",
        pdf="figures/{suite}ablation_{ablation}.pdf",
        png="figures/{suite}ablation_{ablation}.png",
    log:
        "logs/{suite}ablations/{ablation}.report.log",
    conda:
        "../environment.yml"
    params:
        version=ablation_versions,
    script:
        "scripts/ablation_report.py"


rule ablation_budget:
    """Acceptance, round time and speedup of every method over budgets from 4 to 256 draft nodes."""
    input:
        wanted_ablation("budget"),


rule ablation_width:
    """Acceptance lost against Weaver calls saved, over expansion widths and budgets."""
    input:
        wanted_ablation("width"),


rule ablation_gdn_verify:
    """Whole decoding with fused solve, node, level and path recurrence: share of the round, end-to-end effect."""
    input:
        wanted_ablation("gdn_verify"),


rule ablation_pool:
    """Acceptance over sizes of Weaver's pool, and how often the target's token is outside it."""
    input:
        wanted_ablation("pool"),


rule ablation_temperature:
    """Every method over temperatures from greedy to 1.3."""
    input:
        wanted_ablation("temperature"),


rule ablation_acceptance_rule:
    """sample_match against Traversal verification, and what inexact samplers gain and falsify."""
    input:
        wanted_ablation("acceptance_rule"),


rule ablation_drafting:
    """Where Weaver's gain comes from: controls with the wrong, a missing or a blinded input, and the training loss."""
    input:
        wanted_ablation("drafting"),


rule ablation_ceiling:
    """Acceptance by depth against the structural ceiling of factorised drafters, from the target's own samples."""
    input:
        wanted_ablation("ceiling"),


rule ablation_auto_budget:
    """Trees that stop growing where a node no longer pays, against the best fixed budget of the dev prompts."""
    input:
        wanted_ablation("auto_budget"),


rule ablation_context:
    """Round time and speedup over prompts of 64 to 2,048 tokens."""
    input:
        wanted_ablation("context"),


rule ablation_precision:
    """float32 against bfloat16: divergence, logit gaps, acceptance; and the drift of replay and fold."""
    input:
        wanted_ablation("precision"),
