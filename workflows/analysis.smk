rule decode_table:
    """One row per repeat, prompt and arm."""
    input:
        raw_files,
    output:
        "results/{suite}decode.csv",
    log:
        "logs/{suite}decode_table.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("measure.records"),
    script:
        "scripts/decode_table.py"


rule check_invariants:
    """What holds for every record however fast the machine; one that breaks it stops all tables."""
    input:
        records=raw_files,
        companions=companion_files,
    output:
        "results/{suite}checks/invariants.csv",
    log:
        "logs/{suite}check_invariants.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("measure.invariants"),
    script:
        "scripts/check_invariants.py"


rule check_roofline:
    """No kernel may be faster than the limits that were measured beside it."""
    input:
        "results/{suite}gdn_verify.csv",
    output:
        "results/{suite}checks/roofline.csv",
    log:
        "logs/{suite}check_roofline.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("measure.invariants"),
    script:
        "scripts/check_roofline.py"


rule table_speedup:
    """Every arm on every dataset and temperature, with its speedup over plain decoding."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}tables/speedup.csv",
        markdown="results/{suite}tables/speedup.md",
        latex="results/{suite}tables/speedup.tex",
    log:
        "logs/{suite}table_speedup.log",
    conda:
        "../environment.yml"
    params:
        version=[family_version(name) for name in ("report.speedup", "report.arms", "measure.statistics")],
        format=family_version("report.tables"),
    script:
        "scripts/table_speedup.py"


rule table_headline:
    """Each method at the budget that was fastest on dev, measured on test."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}tables/headline.csv",
        markdown="results/{suite}tables/headline.md",
        latex="results/{suite}tables/headline.tex",
    log:
        "logs/{suite}table_headline.log",
    conda:
        "../environment.yml"
    params:
        version=[family_version(name) for name in ("report.speedup", "report.arms", "measure.statistics")],
        format=family_version("report.tables"),
    script:
        "scripts/table_headline.py"


rule table_acceptance_ratio:
    """Accepted drafts of the methods against each other, budget by budget."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}tables/acceptance_ratio.csv",
        markdown="results/{suite}tables/acceptance_ratio.md",
        latex="results/{suite}tables/acceptance_ratio.tex",
    log:
        "logs/{suite}table_acceptance_ratio.log",
    conda:
        "../environment.yml"
    params:
        version=[family_version(name) for name in ("report.acceptance", "report.arms", "measure.statistics")],
        format=family_version("report.tables"),
    script:
        "scripts/table_acceptance_ratio.py"


rule table_stage_times:
    """Where the time of a round goes."""
    input:
        "results/{suite}decode.csv",
        checked="results/{suite}checks/invariants.csv",
    output:
        csv="results/{suite}tables/stage_times.csv",
        markdown="results/{suite}tables/stage_times.md",
        latex="results/{suite}tables/stage_times.tex",
    log:
        "logs/{suite}table_stage_times.log",
    conda:
        "../environment.yml"
    params:
        version=[family_version(name) for name in ("report.stage_times", "report.arms", "measure.statistics")],
        format=family_version("report.tables"),
    script:
        "scripts/table_stage_times.py"


rule claims_probe:
    """Watch real rounds for what the paper claims of every round."""
    input:
        ablation_files,
    output:
        "results/{suite}raw/claims.jsonl",
    log:
        "logs/{suite}claims_probe.log",
    benchmark:
        "logs/{suite}claims_probe.tsv"
    conda:
        "../environment.yml"
    # All cores: nothing else may run beside a measurement.
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        version=[family_version(name) for name in ("measure.probes.claims", "measure.probe_records")],
        settings=claims_params,
    script:
        "scripts/ablation_probe.py"


rule table_claims:
    """Every claim of the paper with its setting, what was measured here, and a verdict."""
    input:
        unpack(claims_inputs),
        claims="workflows/claims.yaml",
    output:
        csv="results/{suite}claims.csv",
        markdown="results/{suite}claims.md",
    log:
        "logs/{suite}table_claims.log",
    conda:
        "../environment.yml"
    params:
        version=[
            family_version(name)
            for name in ("report.claims", "report.claim_measures", "report.gdn_verify", "measure.statistics")
        ],
    script:
        "scripts/table_claims.py"
