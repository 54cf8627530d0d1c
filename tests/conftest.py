"""One thread, one seed, interpreted Triton, and property tests that search the same cases on every run."""

import os

import hypothesis
import pytest
import torch

# Triton decides at import whether kernels are compiled or interpreted; these tests hand them CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
