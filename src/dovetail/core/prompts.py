"""Prompts as arrays: UTF-8 bytes padded with zeros, sent and stored like an observation. Prompts that change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.core.errors import UsageError
from dovetail.core.types import Array, PromptChange

__all__ = [
    "MAX_PROMPT_BYTES",
    "MAX_PROMPT_CHANGES",
    "PROMPT_BYTES",
    "check_prompt_changes",
    "decode_prompt",
    "encode_prompt",
    "prompt_width",
]

PROMPT_BYTES = 256  # widths are multiples of this, so that short prompts cost little
MAX_PROMPT_BYTES = 4096
MAX_PROMPT_CHANGES = 100  # per episode: the longest prompts still fit into its manifest


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


def check_prompt_changes(changes: Sequence[PromptChange], *, first: int, num_steps: int) -> None:
    """Raise UsageError unless the changes are in order, at `num_steps` steps from `first` on, few and short."""
    if len(changes) > MAX_PROMPT_CHANGES:
        raise UsageError(
            f"the prompt changes {len(changes)} times in one episode, but at most {MAX_PROMPT_CHANGES} are allowed"
        )
    before = max(first, 1) - 1  # the first step has the episode's prompt
    for change in changes:
        if not before < change.step < first + num_steps:
            raise UsageError(
                f"a change of the prompt at step {change.step} is out of order or after the last step"
            )
        encode_prompt(change.prompt)  # raises if it is too long
        before = change.step


def _rounded_up(num_bytes: int) -> int:
    return max(1, -(-num_bytes // PROMPT_BYTES)) * PROMPT_BYTES
