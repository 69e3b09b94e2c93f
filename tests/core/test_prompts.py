"""Prompts as arrays: round trip of any length up to the limit, and nothing is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import UsageError
from dovetail.core.prompts import MAX_PROMPT_BYTES, PROMPT_BYTES, decode_prompt, encode_prompt, prompt_width

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=1000)


@given(TEXTS)
def test_prompt_round_trip(text):
    data = encode_prompt(text)
    assert data.ndim == 1 and data.dtype == "uint8" and len(data) % PROMPT_BYTES == 0
    assert len(data) - PROMPT_BYTES < max(len(text.encode()), 1) <= len(data)
    assert decode_prompt(data) == text
    wide = np.pad(data, (0, MAX_PROMPT_BYTES - len(data)))[None]
    assert prompt_width(wide) == len(data)


@pytest.mark.parametrize(("num_bytes", "width"), [(0, 256), (256, 256), (257, 512), (4096, 4096)])
def test_width_is_a_multiple_of_256(num_bytes, width):
    assert encode_prompt("x" * num_bytes).shape == (width,)


def test_prompt_over_the_limit_is_refused_not_cut():
    with pytest.raises(
        UsageError, match=r"^the prompt 'ä+\.\.\.' has 4098 bytes, but at most 4096 are allowed\. Shorten it$"
    ):
        encode_prompt("ä" * 2049)


def test_zero_byte_in_prompt_is_replaced():
    assert decode_prompt(encode_prompt("one\0two")) == "one two"
