"""The facts of an episode of a foreign dataset: its id, its outcome, and what Dovetail does not find there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.ids import check_episode_id
from dovetail.episodes.lerobot import _tables

__all__ = ["content_digest", "demo_facts"]

_COUNTERS = ("index", "episode_index", "task_index")  # change when datasets are merged or split


def demo_facts(
    table: pa.Table, *, dataset: str, index: int, prompt: str, task: str | None, content: str
) -> dict[str, Any]:
    """Return arguments of `Episode`.

    The id is computed from the content, so importing twice is harmless and two datasets never share an id. These ids sort
    before dovetail's own, by dataset and index.
    """
    return {
        "id": check_episode_id(f"0000-lerobot-{dataset[:8]}-{index:06d}-{content[:8]}"),
        "task": task or "lerobot",
        "prompt": prompt,
        "operator": "lerobot",
        "purpose": Purpose.DEMO,
        "outcome": _outcome_of(table),
        "judgement": None,
        "seed": 0,
        "config_hash": "",
        "started_unix_ns": 0,  # unknown
    }


def _outcome_of(table: pa.Table) -> Outcome:
    """Return the outcome according to the flags. A dataset without flags contains successful demonstrations."""
    flags = {
        name: _tables.column(table, f"next.{name}").reshape(len(table), -1)[:, 0].astype(bool)
        for name in ("success", "done", "truncated")
        if f"next.{name}" in table.column_names
    }
    if "success" in flags:
        if flags["success"].any():
            return Outcome.SUCCESS
        ended = "done" not in flags or bool(flags["done"][-1])
        cut_short = "truncated" in flags and bool(flags["truncated"][-1])
        return Outcome.FAILURE if ended and not cut_short else Outcome.TIMEOUT
    if "done" in flags and not flags["done"].any():
        return Outcome.TIMEOUT
    return Outcome.SUCCESS


def content_digest(table: pa.Table, *, prompts: list[str], features: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of the numbers of one episode and their names, without images."""
    shapes = {name: [of["dtype"], list(of["shape"])] for name, of in sorted(features.items())}
    digest = hashlib.sha256(json.dumps([*prompts, shapes]).encode())
    for name in sorted(set(table.column_names) - set(_COUNTERS)):
        if features.get(name, {}).get("dtype") not in (None, "image", "string"):
            digest.update(_tables.column(table, name).tobytes())
    return digest.hexdigest()
