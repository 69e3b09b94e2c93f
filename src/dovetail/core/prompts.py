"""Prompts as arrays: UTF-8 bytes padded with zeros, sent and stored like an observation."""

from __future__ import annotations

import numpy as np

from dovetail.core.types import Array

__all__ = ["PROMPT_BYTES", "decode_prompt", "encode_prompt"]

PROMPT_BYTES = 256


def encode_prompt(prompt: str) -> Array:
    """uint8 [256]. A longer prompt is cut between two characters."""
    text = prompt.replace("\0", " ").encode()[:PROMPT_BYTES].decode(errors="ignore").encode()
    return np.frombuffer(text.ljust(PROMPT_BYTES, b"\0"), np.uint8).copy()


def decode_prompt(data: Array) -> str:
    return bytes(np.asarray(data, np.uint8)).rstrip(b"\0").decode(errors="replace")
