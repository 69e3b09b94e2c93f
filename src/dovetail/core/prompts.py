"""Prompts as arrays: UTF-8 bytes padded with zeros, sent and stored like an observation."""

from __future__ import annotations

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.types import Array

__all__ = ["MAX_PROMPT_BYTES", "PROMPT_BYTES", "decode_prompt", "encode_prompt", "prompt_width"]

PROMPT_BYTES = 256  # widths are multiples of this, so that short prompts cost little
MAX_PROMPT_BYTES = 4096


def encode_prompt(prompt: str) -> Array:
    """uint8 [256], or a multiple of it for a longer prompt. Raise UsageError for one over 4096 bytes: nothing is cut."""
    text = prompt.replace("\0", " ").encode()
    if len(text) > MAX_PROMPT_BYTES:
        raise UsageError(
            f"the prompt '{prompt[:40]}...' has {len(text)} bytes, but at most {MAX_PROMPT_BYTES} are allowed. Shorten it"
        )
    return np.frombuffer(text.ljust(_rounded_up(len(text)), b"\0"), np.uint8).copy()


def decode_prompt(data: Array) -> str:
    return bytes(np.asarray(data, np.uint8)).rstrip(b"\0").decode(errors="replace")


def prompt_width(prompts: Array) -> int:
    """The width that prompts [B, L] need: a multiple of 256."""
    used = np.flatnonzero(prompts.any(axis=0))
    return _rounded_up(int(used[-1]) + 1 if len(used) else 0)


def _rounded_up(num_bytes: int) -> int:
    return max(1, -(-num_bytes // PROMPT_BYTES)) * PROMPT_BYTES
