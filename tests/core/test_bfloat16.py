"""bfloat16 without a numpy type: rounding as torch does it, exact back, and no silent conversion of the bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.bfloat16 import BFLOAT16, all_finite, as_float32, dtype_name, from_bfloat16, to_bfloat16
from dovetail.core.types import Array
from dovetail.policies.arrays import to_numpy, to_tensor

FLOATS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), elements=st.floats(width=32))
BITS = hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))


def test_known_numbers_have_the_bits_of_the_format() -> None:
    # sign, 8 bits of exponent with bias 127, 7 bits of fraction; 1 + 2**-8 is a tie and goes to the even 1.0
    numbers = np.array([1.0, -2.0, 0.15625, 1 + 2**-8, 1 + 3 * 2**-8, np.inf], np.float32)
    assert to_bfloat16(numbers).view(np.uint16).tolist() == [0x3F80, 0xC000, 0x3E20, 0x3F80, 0x3F82, 0x7F80]
    assert from_bfloat16(np.array([0x3F80, 0xC000], np.uint16).view(BFLOAT16)).tolist() == [1.0, -2.0]


@given(FLOATS)
def test_rounding_is_that_of_torch(values: Array) -> None:
    found, expected = to_bfloat16(values), torch.tensor(values).to(torch.bfloat16)
    assert found.shape == values.shape
    np.testing.assert_array_equal(as_float32(found), expected.float().numpy())


@given(BITS)
def test_tensors_keep_every_bit(bits: Array) -> None:
    array = bits.view(BFLOAT16)
    tensor = to_tensor(array)
    assert tensor.dtype == torch.bfloat16 and tensor.shape == array.shape
    back = to_numpy(tensor)
    assert back.dtype == BFLOAT16 and back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert all_finite(array) == bool(tensor.isfinite().all())


@pytest.mark.parametrize(
    "convert", [lambda a: a.astype(np.float32), lambda a: np.array(a, np.float32), lambda a: a + 1]
)
def test_bits_are_never_taken_for_integers(convert) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError):
        convert(to_bfloat16(np.ones(2, np.float32)))


def test_names() -> None:
    assert dtype_name(BFLOAT16) == "bfloat16"
    assert dtype_name(np.dtype(np.float16)) == "float16"
