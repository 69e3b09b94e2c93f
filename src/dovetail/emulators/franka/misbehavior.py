"""Misbehavior on request: which answer is spoiled, and how.

rules.add("drop")                              # the next answer is a closed connection
rules.add("delay", seconds=0.5, count=3)
rules.add("wrong_size", path="/getstate")
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from dovetail.core.errors import UsageError, did_you_mean

__all__ = ["KINDS", "Misbehavior", "Rule", "spoil"]

KINDS = (
    "drop",  # close the connection without an answer
    "reset",  # the same with a TCP reset
    "delay",  # answer after `seconds`
    "silent",  # never answer
    "error",  # 500
    "garbage",  # 200 with bytes that are no JSON
    "half",  # announce the whole answer, send half of it, close
    "trickle",  # one byte each 50 ms
    "nan",  # NaN in the first list
    "wrong_size",  # the first list lacks its last value
    "missing",  # the first key is missing
    "huge",  # an answer of 4 MB
)


@dataclass(slots=True)
class Rule:
    kind: str
    path: str  # "*": any
    count: int  # answers that it still spoils
    seconds: float


class Misbehavior:
    """Rules, the oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def add(self, kind: str, *, path: str = "*", count: int = 1, seconds: float = 0.5) -> None:
        if kind not in KINDS:
            raise UsageError(f"there is no misbehavior '{kind}'.{did_you_mean(kind, KINDS)}")
        with self._lock:
            self._rules.append(Rule(kind, path, count, seconds))

    def add_text(self, text: str) -> None:
        """KIND, KIND:PATH or KIND:PATH:COUNT, separated by commas."""
        for one in filter(None, text.split(",")):
            kind, _, rest = one.strip().partition(":")
            path, _, count = rest.partition(":")
            self.add(kind, path=path or "*", count=int(count or 1))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def take(self, path: str) -> Rule | None:
        """The rule for this answer, which counts as used."""
        with self._lock:
            for rule in self._rules:
                if rule.path in ("*", path):
                    rule.count -= 1
                    if rule.count <= 0:
                        self._rules.remove(rule)
                    return rule
        return None


def spoil(kind: str, body: bytes) -> bytes:
    """The body of an answer with wrong content. An answer that is no JSON stays for the kinds that need it."""
    if kind == "garbage":
        return b"\x00\xff<!doctype " + body[: len(body) // 3]
    if kind == "huge":
        return b"[" + b"0," * (2 << 20) + b"0]"
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(answer, dict) or not answer:
        return body
    key = next((name for name, value in answer.items() if isinstance(value, list)), next(iter(answer)))
    if kind == "missing":
        del answer[key]
    elif kind == "nan":
        answer[key] = [float("nan"), *answer[key][1:]] if isinstance(answer[key], list) else float("nan")
    elif kind == "wrong_size":
        answer[key] = answer[key][:-1] if isinstance(answer[key], list) else [answer[key]]
    return json.dumps(answer).encode()
