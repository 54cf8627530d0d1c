"""Noise of one launch, interpreted, against numpy's generator."""

import numpy as np
import pytest
import torch

from kernels.sampling.triton_gumbel import gumbel_rows


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567, 2**63, 2**64 - 1])
@pytest.mark.parametrize("vocab", [1, 7, 1024, 2051])
def test_rows_are_made_of_the_words_of_numpy(seed, vocab):
    positions = [0, 3, 2**40]
    rows = gumbel_rows(seed, torch.tensor(positions), vocab)
    assert rows.shape == (3, vocab)
    for row, position in zip(rows, positions, strict=True):
        words = np.random.Philox(key=seed, counter=[0, 0, 0, position]).random_raw(vocab)
        uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
        np.testing.assert_array_equal(row.numpy(), (-np.log(-np.log(uniform))).astype(np.float32))
