"""pyproject.toml, environment.yml and constraints say the same; nothing in them points at a machine or a registry."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def by_name(requirements: list[str]) -> dict[str, str]:
    parsed = map(Requirement, requirements)
    return {requirement.name: str(requirement.specifier) for requirement in parsed}


def pyproject_ranges() -> dict[str, str]:
    project = PYPROJECT["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    return by_name([*project["dependencies"], *extras])


def test_environment_has_the_ranges_of_pyproject():
    (pip,) = (entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))
    assert by_name(pip) == pyproject_ranges()
    assert f"python{PYPROJECT['project']['requires-python']}" in ENVIRONMENT["dependencies"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_constraints_pin_every_requirement_within_its_range(name):
    lines = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pins = {re.sub("[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines if line[0] != "#"}
    for requirement, specifier in pyproject_ranges().items():
        assert Requirement(f"{requirement}{specifier}").specifier.contains(pins[requirement])


def test_torch_of_both_constraints_is_one_version():
    versions = {
        re.search(r"^torch==(.+)$", (ROOT / "constraints" / name).read_text(), re.M)[1]
        for name in ("cpu.txt", "gpu.txt")
    }
    assert versions == {"2.13.0"}


@pytest.mark.parametrize(
    "file", ["pyproject.toml", "environment.yml", "Makefile", ".ci/run", "constraints/cpu.txt", "constraints/gpu.txt"]
)
def test_no_registry_or_machine_is_named(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text
    assert not re.search(r"(?<![\w.])/(home|root|work|opt|tmp)/", text)


def test_rule_script_function_and_figure_share_a_name():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflows").glob("*.smk"))
    blocks = re.findall(r"^rule (\w+):\n((?:(?!^rule ).*\n)*)", text, flags=re.MULTILINE)
    rules = [(rule, body, found[1]) for rule, body in blocks if (found := re.search(r"scripts/(\w+)\.py", body))]
    assert len(rules) > 20
    for rule, body, script in rules:
        source = (ROOT / "workflows" / "scripts" / f"{script}.py").read_text(encoding="utf-8")
        assert len(source.splitlines()) < 40
        if script != "train":
            # Watching rounds for the claims is a probe like those of ablations; `download` fetches all parts.
            assert script == {"claims_probe": "ablation_probe", "download_part": "download"}.get(rule, rule)
            assert re.search(rf"import .*\b{script}\b", source)
        if rule.startswith("figure_"):
            assert f"figures/{{suite}}{rule.removeprefix('figure_')}.pdf" in body
