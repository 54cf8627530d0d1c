"""What report.html shows, and where each item comes from; no rule stands here."""

import json
from types import SimpleNamespace


def report_items(wildcards):
    """Figures by category, then tables, in the order of the page."""
    suite = wildcards.suite
    figures = [report_figure(suite, category, name) for category, names in run_figures(suite).items() for name in names]
    tables = [*decode_tables(suite), *(KERNEL_TABLES if measures_kernels(suite) else ())]
    return [*figures, *(report_table(suite, name) for name in tables)]


def report_figure(suite, category, name):
    """A figure, what it draws and the command that makes it."""
    image = f"figures/{suite}{name}.png"
    return {
        "name": name,
        "category": category,
        "caption": f"workflows/report/{f'figure_{name}' if name in TABLES else name}.rst",
        "image": image,
        "data": f"results/{suite}{'' if category == 'Ablations' else 'figures/'}{name}.csv",
        "command": report_command(image),
        "records": report_records(suite, name),
    }


def report_table(suite, name):
    """A table and the command that makes it."""
    return report_entry(suite, name, f"results/{suite}tables/{name}.csv", caption=name)


def claims_item(wildcards):
    """The claims, whose caption introduces the page."""
    return report_entry(wildcards.suite, "claims", f"results/{wildcards.suite}claims.csv", caption="workflow")


def report_entry(suite, name, data, *, caption):
    """An item without a picture."""
    return {
        "name": name,
        "category": "Tables",
        "caption": f"workflows/report/{caption}.rst",
        "data": data,
        "command": report_command(data),
        "records": report_records(suite, name),
    }


def report_records(suite, name):
    """Raw files that say where and when the numbers of an item were measured."""
    if name == "example_tree":
        return [f"results/{suite}example_tree.csv"]
    if name.startswith("gdn_"):
        return [f"results/{suite}raw/kernels.jsonl"]
    if name.startswith("ablation_"):
        ablation = name.removeprefix("ablation_")
        return list(ablation_raw(SimpleNamespace(suite=suite, ablation=ablation)).values())
    watched = [f"results/{suite}raw/claims.jsonl"] if name == "claims" and watches_claims(suite) else []
    return [*raw_files(SimpleNamespace(suite=suite)), *watched]


def report_command(target):
    """The command that makes a file with the configuration of this run; `baseline` is no part of it."""
    settings = workflow.config_settings
    files = [
        str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file) for file in settings.configfiles
    ]
    values = [f"{key}={json.dumps(value)}" for key, value in settings.config.items() if key != "baseline"]
    options = [*(["--configfile", *files] if files else []), *(["--config", *values] if values else [])]
    return shlex.join(["snakemake", target, *options])


def report_inputs(wildcards):
    """Every file that the page shows or that says where a number comes from."""
    items = [claims_item(wildcards), *report_items(wildcards)]
    named = {kind: [item[kind] for item in items if kind in item] for kind in ("caption", "data", "image")}
    return named | {"records": list(dict.fromkeys(file for item in items for file in item["records"]))}
