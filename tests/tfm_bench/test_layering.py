"""One-way imports: kernels <- tfm_bench <- workflows; the package never needs Snakemake."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS_MAY_IMPORT = {"kernels", "torch", "numpy", "triton", *sys.stdlib_module_names}


def imported(source: str) -> set[str]:
    """Top-level packages that a module imports, anywhere in it; a relative import counts as none."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules("kernels"), ids=lambda path: str(path.relative_to(ROOT)))
def test_kernels_import_only_torch_and_its_kind(path):
    assert imported(path.read_text(encoding="utf-8")) <= KERNELS_MAY_IMPORT


@pytest.mark.parametrize("path", modules("tfm_bench"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_imports_neither_snakemake_nor_workflows(path):
    assert not imported(path.read_text(encoding="utf-8")) & {"snakemake", "workflows", "tests"}


def test_the_check_sees_imports_inside_functions():
    assert imported("def f():\n    from snakemake.io import expand\n    import tfm_bench.tree\n") == {
        "snakemake",
        "tfm_bench",
    }
