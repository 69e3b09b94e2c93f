"""Copies of new weights through a small buffer, as a GPU gets them."""

import numpy as np
import pytest
import torch

from dovetail.core.bfloat16 import BFLOAT16, to_bfloat16
from dovetail.policies.arrays import copy_in_pieces, to_numpy


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (2, 3, 7)])
@pytest.mark.parametrize("source_type", ["float32", "bfloat16"])
@pytest.mark.parametrize("target_type", [torch.float32, torch.bfloat16])
def test_pieces_together_are_the_array(shape, source_type, target_type):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given = to_bfloat16(array) if source_type == "bfloat16" else array
    target = torch.full(shape, torch.nan, dtype=target_type)
    waits = []
    copy_in_pieces(given, target, torch.zeros(16, dtype=torch.uint8), wait=lambda: waits.append(0))
    expected = torch.from_numpy(array.copy())
    if source_type == "bfloat16":
        expected = expected.to(torch.bfloat16)
    assert torch.equal(target, expected.to(target_type))
    per_piece = 16 // target.element_size()
    assert len(waits) == -(-array.size // per_piece)  # after each piece, before the buffer is used again


def test_integers_are_copied_as_they_are():
    array = np.arange(9)
    target = torch.zeros(9, dtype=torch.int64)
    copy_in_pieces(array, target, torch.zeros(32, dtype=torch.uint8), wait=lambda: None)
    assert np.array_equal(to_numpy(target), array) and array.dtype != BFLOAT16
