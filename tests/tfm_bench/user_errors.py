"""What a folder that cannot be loaded is answered with."""

import pytest

from tfm_bench.errors import UserError


def error_of(load, folder):
    """The message of the UserError that load(folder) raises: one line, which names the folder."""
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message
