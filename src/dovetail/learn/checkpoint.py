"""Checkpoints: one safetensors file, and a manifest with its checksum, each written by an atomic rename."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core.disk import MAX_JSON_BYTES, dump_json, load_json, make_folder, read_file, sha256, write_atomic
from dovetail.core.errors import CheckpointError, StoreError, shown
from dovetail.core.tensor_files import read_tensors, tensor_blocks
from dovetail.core.types import Array

__all__ = ["checkpoint_facts", "load_checkpoint", "save_checkpoint"]

SCHEMA = 1
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def save_checkpoint(folder: Path, state: Mapping[str, Array], *, facts: Mapping[str, int | float | str]) -> None:
    """Write the data, then the manifest with its hash. A crash leaves the previous checkpoint intact.

    Each folder has one writer, so temporary files in it are from a killed process and are removed.
    """
    data = tensor_blocks(state)
    digest = sha256(data)
    name = f"state-{digest[:16]}.safetensors"
    manifest = {"schema": SCHEMA, "file": name, "sha256": digest, **facts}
    try:
        make_folder(folder)
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink()
        write_atomic(folder / name, data)
        write_atomic(folder / "manifest.json", dump_json(manifest, indent=2))
    except OSError as error:
        raise StoreError(f"cannot write checkpoint {folder}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):  # the checkpoint is saved; the next call removes the rest
        for old in folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink()


def load_checkpoint(folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return state and facts. Raise CheckpointError for a missing or damaged checkpoint."""
    name, digest, facts = _manifest(folder)
    try:
        return read_tensors(folder / name, checksum=digest), facts
    except StoreError as error:
        raise CheckpointError(f"cannot read the data of checkpoint {folder}: {error}") from error


def checkpoint_facts(folder: Path) -> dict[str, Any]:
    """Return the facts that were saved with a checkpoint, without its state."""
    return _manifest(folder)[2]


def _manifest(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Return the name of the data file, its hash, and the facts."""
    path = folder / "manifest.json"
    try:
        manifest = load_json(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path), indent=2)
        schema, name, digest = manifest.pop("schema"), str(manifest.pop("file")), manifest.pop("sha256")
    except (StoreError, KeyError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint: {error}") from error
    if schema != SCHEMA:
        raise CheckpointError(
            f"checkpoint {folder} has schema {shown(schema)}, but this version reads {SCHEMA}. Resume with the version "
            "that wrote it, or start a new run"
        )
    if not _FILE.fullmatch(name):
        raise CheckpointError(f"{folder} is not a checkpoint: {name[:80]!r} is not the name of its data")
    return name, digest, manifest
