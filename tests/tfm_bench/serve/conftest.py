"""A server of plain decoding that the tests of a module share."""

import pytest

from tests.tfm_bench.serve.served_stack import served
from tfm_bench.engine import Arm


@pytest.fixture(scope="module")
def plain():
    with served(Arm("ar")) as client:
        yield client
