"""Change bytes and JSON in ways that break readers: flips, cuts, huge numbers, other types, deep nesting."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["mutate_bytes", "mutate_json"]

_NUMBERS = (0, 1, -1, 2, 255, 256, 2**15, 2**31 - 1, -(2**31), 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
_TEXTS = (
    "",
    "\0",
    "../../x",
    "/etc/passwd",
    "{0:9999999999d}",
    "x" * 5000,
    "ä€\ud800",
    "a\nb",
    "%s%n",
    "NaN",
    "object",
    "<U9999999",
)


def _deep(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


_VALUES = st.one_of(
    st.sampled_from(
        [*_NUMBERS, 2**64, 10**40, 0.5, 1e308, -1e-300, float("nan"), float("inf"), True, False, None]
    ),
    st.sampled_from(_TEXTS),
    st.sampled_from([[], {}, [[]], [None] * 50, {"a": {}}, [2**62, 2**62], [-1], [0], [1] * 40]),
    st.sampled_from([50, 500]).map(_deep),
).map(copy.deepcopy)  # later changes must not reach the samples


def mutate_bytes(data: st.DataObject, original: bytes) -> bytes:
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        size = len(changed)
        place = data.draw(st.integers(0, max(0, size - 1)))
        how = data.draw(st.sampled_from(["flip", "number", "cut", "insert", "remove", "repeat", "fill", "end"]))
        if how == "flip" and size:
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "number":
            length = data.draw(st.sampled_from([2, 4, 8]))
            number = data.draw(st.sampled_from(_NUMBERS)) % (1 << 8 * length)
            changed[place : place + length] = number.to_bytes(
                length, data.draw(st.sampled_from(["little", "big"]))
            )
        elif how == "cut":
            del changed[place:]
        elif how == "insert":
            changed[place:place] = data.draw(st.binary(min_size=1, max_size=40))
        elif how == "remove":
            del changed[place : place + data.draw(st.integers(1, 64))]
        elif how == "repeat":
            piece = changed[place : place + data.draw(st.integers(1, 200))]
            changed[place:place] = piece * data.draw(st.sampled_from([1, 3, 50]))
        elif how == "fill":
            length = data.draw(st.integers(1, 64))
            changed[place : place + length] = bytes([data.draw(st.sampled_from([0, 255, 65]))]) * length
        else:
            changed += data.draw(st.sampled_from([b"\0", b"\n", b"{}", bytes(600), b"\xff" * 9]))
    return bytes(changed)


def mutate_json(data: st.DataObject, original: Any) -> Any:
    """Replace, remove, repeat or move parts of a tree. The result can be encoded, also where it has NaN."""
    tree = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 3))):
        parent, key = _choose(data, tree)
        if parent is None:
            tree = data.draw(_VALUES)
            continue
        how = data.draw(st.sampled_from(["replace", "replace", "replace", "remove", "wrap", "swap", "add"]))
        if how == "replace":
            parent[key] = data.draw(_VALUES)
        elif how == "remove":
            del parent[key]
        elif how == "wrap":
            parent[key] = [parent[key]] * data.draw(st.sampled_from([1, 2, 30]))
        elif how == "swap":
            other_parent, other_key = _choose(data, tree)
            if other_parent is not None:
                parent[key] = copy.deepcopy(other_parent[other_key])
        elif isinstance(parent, dict):
            parent[data.draw(st.sampled_from(_TEXTS[:6]))] = data.draw(_VALUES)
        else:
            parent.append(data.draw(_VALUES))
    return json.loads(json.dumps(tree))  # as a file contains it: text keys, no tuples


def _choose(data: st.DataObject, tree: Any) -> tuple[Any, Any]:
    """Return a random place of a tree as parent and key; (None, None): the root."""
    places: list[tuple[Any, Any]] = [(None, None)]
    rest = [tree]
    while rest and len(places) < 3000:
        node = rest.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            places.append((node, key))
            rest.append(node[key])
    return (
        data.draw(st.sampled_from(places))
        if len(places) < 50
        else places[data.draw(st.integers(0, len(places) - 1))]
    )
