"""Controls hide one input each, and the full Weaver none."""

import pytest
import torch

from tfm_bench.models.weaver_control import CONTROLS, FULL, WeaverControl


@pytest.mark.parametrize(
    ("control", "path", "hidden"),
    [
        (FULL, True, True),
        (CONTROLS["blind_to_path"], False, True),
        (CONTROLS["no_target_hidden"], True, False),
        (WeaverControl("neither", sees_path=False, sees_target_hidden=False), False, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_is_hidden_is_zero_and_the_rest_untouched(control, path, hidden):
    weight, states = torch.randn(5, 4), torch.randn(2, 3, 4)
    assert torch.equal(control.embedding(weight), weight if path else torch.zeros(5, 4))
    assert torch.equal(control.target_hidden(states), states if hidden else torch.zeros(2, 3, 4))


def test_controls_are_found_by_name():
    assert {name: control.name for name, control in CONTROLS.items()} == {name: name for name in CONTROLS}
    assert FULL.name not in CONTROLS
