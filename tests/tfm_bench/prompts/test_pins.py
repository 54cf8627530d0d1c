"""config/datasets.yaml as it is committed and as users get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tfm_bench.prompts.published_rows import REVISION, sharechat_pin
from tfm_bench.errors import UserError
from tfm_bench.prompts.pins import Pins, read_pins
from tfm_bench.prompts.sources import BENCHMARKS, DATASETS

COMMITTED = Path(__file__).parents[3] / "config" / "datasets.yaml"


def test_committed_file_lists_every_data_set_on_the_hub_and_its_repository() -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    assert read_pins(COMMITTED) == Pins()
    assert list(yaml.safe_load(text)) == list(Pins.model_fields)
    assert set(Pins.model_fields) == {name for name in DATASETS if name != "mt_bench"}
    for benchmark in BENCHMARKS.values():
        assert benchmark.hub is None or f"# {benchmark.hub.repo}\n" in text


def written(tmp_path: Path, mapping: dict[str, Any]) -> Path:
    path = tmp_path / "datasets.yaml"
    path.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    return path


def test_pins_are_read(tmp_path: Path) -> None:
    pins = read_pins(written(tmp_path, {"gsm8k": {"revision": REVISION}, "sharechat": sharechat_pin()}))
    assert pins.gsm8k is not None
    assert pins.gsm8k.revision == REVISION
    assert pins.sharechat is not None
    assert pins.sharechat.topics.english == {"coding": 150, "travel": 100}
    assert pins.mbpp is None


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"gsm8k": {"revision": "main"}}, "gsm8k.revision: found 'main'; string should match"),
        ({"gsm8k": {}}, "gsm8k.revision: not there, but required"),
        ({"gsm8": None}, "gsm8: unknown key"),
        (
            {"math500": "main"},
            "math500: found 'main'; accepted is a mapping with revision: 40 hexadecimal digits, quoted",
        ),
        ({"math500": {"revision": int("12345678" * 5)}}, f"found {'12345678' * 5}, which YAML .*; quote it"),
        ({"math500": {"revision": 1e40}}, "math500.revision: found 1e.40, which YAML .*; quote it"),
        ({"math500": {"revison": REVISION}}, "math500.revison: unknown key"),
        ({"sharechat": {"revision": REVISION}}, "sharechat.files: not there, but required"),
        ({"sharechat": sharechat_pin() | {"topics": {"english": {"a": 0}, "others": {"a": 1}}}}, "english.a: found 0"),
    ],
)
def test_wrong_pins_name_file_and_key(mapping: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_pins(written(tmp_path, mapping))
    assert str(caught.value).startswith(str(tmp_path / "datasets.yaml"))
    assert "\n" not in str(caught.value)
