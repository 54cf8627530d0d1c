"""Fixtures that tests of several modules share."""

from __future__ import annotations

import pytest
from huggingface_hub import constants

from tests.tfm_bench.models.hub_parts import TARGET, WEAVER
from tests.tfm_bench.models.local_hub import LocalHub


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    with LocalHub({"some/target": dict(TARGET), "some/weaver": {"folder/w.pth": WEAVER}}).running() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served
