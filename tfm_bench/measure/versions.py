"""Code versions of the families: raising a module's VERSION reruns what it made, editing a comment does not."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def family_version(module: str) -> int:
    """The integer VERSION of a module of tfm_bench ("measure.cells"), read without importing what it imports."""
    source = (PACKAGE / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "VERSION" for t in node.targets):
            return int(ast.literal_eval(node.value))
    raise ValueError(f"tfm_bench.{module} has no VERSION")
