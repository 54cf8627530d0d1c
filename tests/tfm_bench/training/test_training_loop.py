"""The training loop: packing, schedule, optimisers, and a resumed run that equals an unbroken one."""

import numpy as np
import pytest
import torch

from tfm_bench.training.common import Trainer, optimizers, packed_row, warmup_stable_decay


def test_packed_row_starts_with_a_document_and_weights_prompts():
    ids, weights = packed_row(iter([([1, 2, 3], 2), ([4, 5, 6], 1)]), 5, 0.25)
    assert ids == [1, 2, 3, 4, 5]
    assert weights == [0.25, 0.25, 1.0, 0.25, 1.0]


def test_schedule_rises_stays_and_falls_to_zero():
    factors = [warmup_stable_decay(step, 1000) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 40)
    assert factors[40:700] == [1.0] * 660
    assert 0 < factors[-1] < 0.01
    assert np.all(np.diff(factors[700:]) < 0)


def test_every_parameter_has_exactly_one_optimizer():
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 4), "linear": torch.nn.Linear(4, 3)})
    muon, adam = optimizers(module, 1e-3)
    assert [p.shape for p in muon.param_groups[0]["params"]] == [(3, 4)]
    assert len(adam.param_groups[0]["params"]) == 2


def make_trainer(state_path, steps, crash_at=None):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def batch_of(step):
        if step == crash_at:
            raise KeyboardInterrupt
        return torch.randn(16, 4, generator=torch.Generator().manual_seed(step))

    def loss_of(x):
        return (module(x)[:, 0] - x.sum(1)).square().mean()

    return Trainer(
        module, batch_of=batch_of, loss_of=loss_of, steps=steps, learning_rate=1e-2, state_path=state_path
    )  # fmt: skip


def test_resumed_run_equals_unbroken_run(tmp_path):
    whole = make_trainer(tmp_path / "whole.pt", 120).run(save_every=40)
    broken = make_trainer(tmp_path / "broken.pt", 120, crash_at=70)
    with pytest.raises(KeyboardInterrupt):
        broken.run(save_every=40)
    resumed = make_trainer(tmp_path / "broken.pt", 120)
    assert resumed.step == 40
    assert resumed.run(save_every=40) == whole
    assert sum(whole[-5:]) < 0.8 * sum(whole[:5])


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    trainer = make_trainer(tmp_path / "state.pt", 5)
    trainer.loss_of = lambda x: torch.tensor(float("nan"), requires_grad=True)
    with pytest.raises(FloatingPointError, match="step 0"):
        trainer.run()
