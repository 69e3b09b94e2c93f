"""Checkpoints: one safetensors file and a manifest with its checksum, in place by an atomic rename."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy

from dovetail.core.disk import dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import CheckpointError, StoreError
from dovetail.core.types import Array

__all__ = ["checkpoint_facts", "load_checkpoint", "save_checkpoint"]

SCHEMA = 1


def save_checkpoint(folder: Path, state: Mapping[str, Array], *, facts: Mapping[str, int | float | str]) -> None:
    """The manifest is written last and names the data by its hash: a crash leaves the checkpoint before this one.

    There is one writer, the run's: so what lies half written in the folder was a killed one's, and goes first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for half in folder.glob(".*.tmp"):
        half.unlink()
    data = safetensors.numpy.save({name: value.copy() for name, value in state.items()})
    digest = hashlib.sha256(data).hexdigest()
    name = f"state-{digest[:16]}.safetensors"
    write_atomic(folder / name, data)
    manifest = {"schema": SCHEMA, "file": name, "sha256": digest, **facts}
    write_atomic(folder / "manifest.json", dump_json(manifest, indent=2))
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink()


def load_checkpoint(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """State and facts; a CheckpointError in one line for anything that is not a whole checkpoint."""
    name, digest, facts = _manifest(folder)
    try:
        data = (folder / Path(name).name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} lacks its data: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"checkpoint {folder / name} is damaged: its checksum is not what was written")
    try:
        return dict(safetensors.numpy.load(data)), facts
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"checkpoint {folder / name} cannot be read: {error}") from error


def checkpoint_facts(folder: Path) -> dict[str, Any]:
    """What was noted with a checkpoint, without reading its state."""
    return _manifest(folder)[2]


def _manifest(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """The name of the data, its hash, and the facts."""
    path = folder / "manifest.json"
    try:
        manifest = load_json(read_file(path), name=str(path), indent=2)
        schema, name, digest = manifest.pop("schema"), manifest.pop("file"), manifest.pop("sha256")
    except (StoreError, KeyError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint: {error}") from error
    if schema != SCHEMA:
        raise CheckpointError(
            f"checkpoint {folder} has schema {schema}, this version reads {SCHEMA}: go on with the version that wrote "
            "it, or start a new run"
        )
    return name, digest, manifest
