"""The manifest of an episode: everything but its steps and images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.disk import MAX_JSON_BYTES, dump_json, load_json, read_file, sha256
from dovetail.core.errors import StoreError, shown
from dovetail.core.types import Episode, EpisodeStart, Outcome, PromptChange
from dovetail.episodes._columns import FRAME, OBSERVATION, Columns
from dovetail.episodes._frames import Layout
from dovetail.episodes._manifest_check import check_manifest, optional_facts
from dovetail.episodes._prompt_changes import changes_from_json, changes_to_json
from dovetail.episodes._tables import parquet_note

__all__ = [
    "LAST",
    "MANIFEST",
    "SCHEMA",
    "STEPS",
    "content",
    "episode_facts",
    "episode_fields",
    "expected_columns",
    "layout_of",
    "pack_manifest",
    "prompt_changes",
    "read_manifest",
    "read_manifest_copy",
    "unpack_manifest",
    "with_steps",
]

SCHEMA = 2
MANIFEST, STEPS, LAST = "manifest.json", "steps.parquet", "last.parquet"


def episode_facts(episode: Episode, columns: Columns) -> dict[str, Any]:
    """Return the manifest's fields that do not depend on how the episode is stored."""
    changes = changes_to_json(episode.prompt_changes)
    return {
        **episode.start.to_json(),
        "outcome": episode.outcome.value,
        "judgement": episode.judgement.value if episode.judgement else None,
        "num_steps": len(episode),
        "num_human_steps": episode.num_human_steps,
        "num_interventions": episode.num_interventions,
        "policy_versions": [int(version) for version in np.unique(columns.steps["policy_version"])],
        "last_time_ns": columns.last_time_ns,
        "columns": columns.checksums(),
        **({"prompt_changes": changes} if changes else {}),  # without them, the content is that of older versions
    }


def content(facts: Mapping[str, Any]) -> str:
    """Digest that is equal for equal episodes, however they are encoded."""
    return sha256(json.dumps(facts, sort_keys=True).encode())


def episode_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an Episode and an EpisodeInfo share."""
    start = EpisodeStart.from_json(manifest)
    judgement = manifest["judgement"]
    return {
        **{field.name: getattr(start, field.name) for field in fields(start)},
        "outcome": Outcome(manifest["outcome"]),
        "judgement": Outcome(judgement) if judgement else None,
        **optional_facts(manifest),
    }


def prompt_changes(manifest: Mapping[str, Any]) -> tuple[PromptChange, ...]:
    return changes_from_json(manifest.get("prompt_changes", []), num_steps=manifest["num_steps"])


def layout_of(camera: Mapping[str, Any]) -> Layout:
    return Layout(codec=camera["codec"], shape=tuple(camera["shape"]), dtype=camera["dtype"])


def with_steps(note: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """Complete the manifest's copy in the steps file with the checksum of that file."""
    return {**note, "files": {**note["files"], STEPS: {"sha256": sha256(data), "num_bytes": len(data)}}}


def expected_columns(name: str, manifest: Mapping[str, Any]) -> dict[str, str | None]:
    """The columns of a table by name, with their checksums if they have one."""
    known, cameras = manifest["columns"], manifest["cameras"]
    if name == STEPS:
        steps = {key.removeprefix("steps/"): known[key] for key in known if key.startswith("steps/")}
        return steps | {FRAME + key: camera["rows"] for key, camera in cameras.items()}
    last = {OBSERVATION + key.removeprefix("last/"): known[key] for key in known if key.startswith("last/")}
    # no checksum: the time is also in the manifest
    return {"time_ns": None, **last, **{FRAME + key: None for key in cameras}}


def pack_manifest(manifest: Mapping[str, Any]) -> bytes:
    return dump_json(manifest, indent=1)


def unpack_manifest(data: bytes, *, name: str) -> dict[str, Any]:
    return load_json(data, name=name, indent=1)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an episode's folder. Raises StoreError if it is damaged, too old or of another episode."""
    path = folder / MANIFEST
    manifest = unpack_manifest(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path))
    schema = manifest.get("schema")
    if schema == 1:
        raise StoreError(f"{folder} was written by dovetail 0.1 (schema 1). Read it with that version.")
    if schema != SCHEMA:
        raise StoreError(f"{folder} has schema {shown(schema)}, but this version reads schema {SCHEMA}")
    check_manifest(manifest, name=str(path), files=(STEPS, LAST))
    if manifest["id"] != folder.name:
        raise StoreError(f"{folder} contains episode {manifest['id'][:200]}: the folder was renamed")
    return manifest


def read_manifest_copy(data: bytes, *, name: str) -> dict[str, Any]:
    """Read the manifest's copy from the bytes of a steps file. Raises StoreError if it is damaged."""
    try:
        note = load_json(parquet_note(data), name=name)
    except ValueError as error:
        raise StoreError(f"{name} is damaged: {error}") from error
    check_manifest(note, name=name, files=(LAST,))
    return note
