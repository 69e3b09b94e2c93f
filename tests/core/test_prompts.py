"""Prompts as arrays: round trip, and cut between characters."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.prompts import PROMPT_BYTES, decode_prompt, encode_prompt

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=400)


@given(TEXTS)
def test_prompt_round_trip(text):
    data = encode_prompt(text)
    assert (data.shape, data.dtype) == ((PROMPT_BYTES,), "uint8")
    found = decode_prompt(data)
    assert text.startswith(found)
    assert found == text or PROMPT_BYTES - 4 < len(found.encode()) <= PROMPT_BYTES


def test_zero_byte_in_prompt_is_replaced():
    assert decode_prompt(encode_prompt("one\0two")) == "one two"
