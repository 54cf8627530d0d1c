rule html_report:
    """One page that works offline: claims, figures with what they draw, tables, and where all of it comes from."""
    input:
        unpack(report_inputs),
    output:
        "results/{suite}report.html",
    log:
        "logs/{suite}html_report.log",
    conda:
        "../environment.yml"
    params:
        version=family_version("report.html"),
        claims=claims_item,
        shown=report_items,
    script:
        "scripts/html_report.py"


rule report:
    """Claims, figures, tables and their provenance on one page that works offline: results/report.html."""
    input:
        f"results/{RUN}report.html",
