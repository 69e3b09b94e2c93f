"""What a model said, read with patience where it is untidy and with none where it is unclear."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import LabelError

__all__ = ["Answer", "read_answer"]

_LONGEST = 20_000  # characters, from the end: who thinks aloud for longer still answers last
_WORDS = {"true": True, "yes": True, "success": True, "false": False, "no": False, "failure": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    success: bool
    confidence: float
    progress: tuple[float, ...]  # one per frame, 0 to 1; none where it was not asked for
    reason: str


def read_answer(text: str, *, token: str, num_progress: int) -> Answer:
    """The last JSON object in the text that carries the question's token: a model may think aloud, repeat the question,
    or wrap its answer; what stood in the question cannot know the token."""
    text = text[-_LONGEST:]
    found = [thing for thing in _objects(text) if thing.get("id") == token] if token in text else []
    if not found:
        raise LabelError("the model's answer holds no JSON object with the question's id")
    answer = found[-1]
    progress = _progress(answer.get("progress"), num_progress)
    return Answer(
        success=_truth(answer.get("success")),
        confidence=_share(answer.get("confidence", 0.5), what="confidence"),
        progress=progress,
        reason=_line(str(answer.get("reason", ""))),
    )


def _line(text: str) -> str:
    """One line that can be stored and shown: JSON may hold half a character."""
    return " ".join(text[:500].encode("utf-8", "replace").decode().split())


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            thing, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(thing, dict):
                yield thing
        at = text.find("{", end)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _WORDS:
        return _WORDS[value.strip().lower()]
    raise LabelError(f"the model's answer says neither success nor failure, but {value!r:.60}")


def _progress(value: Any, num: int) -> tuple[float, ...]:
    if num == 0:
        return ()
    if not isinstance(value, list) or len(value) != num:
        got = f"{len(value)} numbers" if isinstance(value, list) else f"{value!r:.60}"
        raise LabelError(f"the model was asked for the progress in {num} frames and gave {got}")
    return tuple(_share(item, what="progress") for item in value)


def _share(value: Any, *, what: str) -> float:
    """From 0 to 1; percents are understood where they are called so."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    try:
        number = float(value.strip().removesuffix("%") if isinstance(value, str) else value) / (
            100 if percent else 1
        )
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not -1e-6 <= number <= 1.0 + 1e-6:
        raise LabelError(f"the model's {what} should be from 0 to 1, got {value!r:.60}")
    return min(max(number, 0.0), 1.0)
