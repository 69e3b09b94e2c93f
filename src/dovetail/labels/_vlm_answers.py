"""Parse the answer of a vision-language model: tolerant about its form, strict about its content."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import LabelError

__all__ = ["Answer", "read_answer"]

_MAX_CHARS = 20_000  # from the end: the answer comes last, after any reasoning
_WORDS = {"true": True, "yes": True, "success": True, "false": False, "no": False, "failure": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    success: bool
    confidence: float
    progress: tuple[float, ...]  # one per frame, 0 to 1; empty if it was not requested
    reason: str


def read_answer(text: str, *, token: str, num_progress: int) -> Answer:
    """Parse the last JSON object in the text that contains the question's token.

    A model may add reasoning, repeat the question or wrap its answer. Text from the episode cannot contain the token.
    """
    text = text[-_MAX_CHARS:]
    found = [candidate for candidate in _objects(text) if candidate.get("id") == token] if token in text else []
    if not found:
        raise LabelError("the model's answer contains no JSON object with the question's id")
    answer = found[-1]
    progress = _progress(answer.get("progress"), num_progress)
    return Answer(
        success=_truth(answer.get("success")),
        confidence=_share(answer.get("confidence", 0.5), what="confidence"),
        progress=progress,
        reason=_line(str(answer.get("reason", ""))),
    )


def _line(text: str) -> str:
    """Convert to one line of valid UTF-8; JSON may contain half a surrogate pair."""
    return " ".join(text[:500].encode("utf-8", "replace").decode().split())


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if isinstance(value, dict):
                yield value
        start = text.find("{", end)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    raise LabelError(f"the model's answer for success is {value!r:.60}, expected true or false")


def _progress(value: Any, num: int) -> tuple[float, ...]:
    if num == 0:
        return ()
    if not isinstance(value, list) or len(value) != num:
        got = f"{len(value)} numbers" if isinstance(value, list) else f"{value!r:.60}"
        raise LabelError(f"the model's progress is {got}, expected one number for each of {num} frames")
    return tuple(_share(item, what="progress") for item in value)


def _share(value: Any, *, what: str) -> float:
    """Parse a number from 0 to 1, or a text that ends in %."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    try:
        number = float(value.strip().removesuffix("%") if isinstance(value, str) else value) / (
            100 if percent else 1
        )
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not -1e-6 <= number <= 1.0 + 1e-6:
        raise LabelError(f"the model's {what} is {value!r:.60}, expected a number from 0 to 1")
    return min(max(number, 0.0), 1.0)
