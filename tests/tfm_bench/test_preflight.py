"""What a run lacks is said before it starts, all of it at once."""

from pathlib import Path

import pytest

from tests.tfm_bench.backends.fake_installation import make_config
from tfm_bench.backends.settings import load_server_config
from tfm_bench.config import load_config, read_yaml
from tfm_bench.errors import UserError
from tfm_bench.preflight import preflight
from tfm_bench.prompts.pins import Pins

ROOT = Path(__file__).parents[2]


def config_of(**changes):
    values = read_yaml(ROOT / "config" / "default.yaml")
    return load_config(values | {"stack": values["stack"] | changes})


def test_a_run_that_lacks_nothing_starts():
    preflight(config_of(), Pins(), ["decode_cell"], [])
    preflight(config_of(), Pins(gsm8k={"revision": "0" * 40}), ["decode_cell", "prepare_dataset"], ["gsm8k"])


def test_all_that_is_missing_is_named_at_once_with_a_way_out():
    config = config_of(device="cuda").model_copy(update={"datasets": ["gsm8k", "mt_bench", "mbpp"]})
    with pytest.raises(UserError) as error:
        preflight(config, Pins(), ["decode_cell"], ["gsm8k", "mbpp"])
    first, *lines = str(error.value).splitlines()
    assert first == "this run cannot be finished; nothing was started:"
    assert [line.split(":")[1].strip() for line in lines[:2]] == ["gsm8k.revision", "mbpp.revision"]
    assert lines[2] == "  or leave them out: --config 'datasets=[mt_bench]'"
    assert "stack.device: found cuda, but torch sees no GPU here" in lines[3]


def test_servers_need_an_installation(tmp_path):
    config = load_server_config(make_config(str(tmp_path)))
    missing = config.sglang.model_copy(update={"python": str(tmp_path / "python")})
    config = config.model_copy(update={"sglang": missing})
    with pytest.raises(UserError, match=r"sglang\.python"):
        preflight(config, Pins(), ["server_cell"], [])
    preflight(config, Pins(), ["prepare_dataset"], [])


def test_a_run_that_only_fetches_needs_no_gpu():
    preflight(config_of(device="cuda"), Pins(), ["download_part"], [])
