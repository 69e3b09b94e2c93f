"""The files of a folder with published weights, which may come from elsewhere: their sizes, and where a link may lead.

Hugging Face's cache consists of links: models--NAME/snapshots/REVISION/config.json leads to models--NAME/blobs/HASH. Any
other link out of the folder is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.core.disk import MAX_JSON_BYTES, open_file, parse_json, read_file
from dovetail.core.errors import CheckpointError, DovetailError, StoreError, one_line, shown

__all__ = [
    "MAX_AXES",
    "MAX_CAMERAS",
    "MAX_IMAGE_SIDE",
    "check_size",
    "clear_errors",
    "find_file",
    "is_openpi",
    "read_json",
    "type_hint",
]

READABLE = ("pi0", "pi05", "smolvla", "act", "diffusion")  # policies that read published folders
MAX_AXES = 1024  # of a state or an action
MAX_CAMERAS = 32
MAX_IMAGE_SIDE = 4096  # pixels
_MAX_MESSAGE_CHARS = 1000


def find_file(path: Path, *, root: Path | None = None) -> Path:
    """The regular file that `path` names. Raise CheckpointError for a link out of `root`, by default the file's folder."""
    folder = Path(os.path.realpath(root or path.parent))
    try:
        found = Path(os.path.realpath(path, strict=True))
    except (OSError, ValueError, RuntimeError) as error:  # missing, a zero byte, a loop of links
        raise CheckpointError(f"{path} cannot be read ({one_line(error)}). Copy the folder again") from error
    if not any(found.is_relative_to(place) for place in (folder, *_blobs(folder))):
        raise CheckpointError(
            f"{path} is a symbolic link out of the folder, which is not followed. Copy the folder with `cp -rL`, and use "
            "the copy"
        )
    if not found.is_file():
        raise CheckpointError(f"{path} is not a regular file")
    return found


def read_json(path: Path, *, root: Path | None = None) -> dict[str, Any]:
    """A JSON object of at most 4 MB. Raise CheckpointError for anything else."""
    try:
        data = parse_json(read_file(find_file(path, root=root), max_bytes=MAX_JSON_BYTES))
    except (StoreError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({shown(one_line(error), max_chars=300)}). Copy the folder again"
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no JSON object. Copy the folder again")
    return data


def is_openpi(config: Mapping[str, Any]) -> bool:
    """Whether this is the config.json of a checkpoint of openpi, converted to PyTorch."""
    return {"action_dim", "action_horizon", "paligemma_variant"} <= config.keys()


def type_hint(found: object) -> str:
    """What to do with a folder of another model."""
    if found in READABLE:
        return f"Set policy.type={found}, or name another folder"
    return f"Dovetail reads {', '.join(READABLE[:-1])} and {READABLE[-1]}"


def check_size(path: Path, *, max_bytes: int) -> None:
    """Raise CheckpointError for a file that is too large, or that is mostly holes."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
    except StoreError as error:
        raise CheckpointError(one_line(error)) from error
    if size > max_bytes:
        raise CheckpointError(f"{path} has {size >> 20} MB, more than the {max_bytes >> 20} MB that are allowed")


@contextmanager
def clear_errors(folder: Path) -> Iterator[None]:
    """Errors that a folder's content causes become one short line."""
    try:
        yield
    except DovetailError as error:
        if len(str(error)) <= _MAX_MESSAGE_CHARS:
            raise
        raise type(error)(shown(one_line(error), max_chars=_MAX_MESSAGE_CHARS)) from error
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        what = shown(f"{type(error).__name__}: {error}", max_chars=300)
        raise CheckpointError(
            f"{folder}/config.json is incomplete or contradicts itself ({what}). Copy the folder again"
        ) from error


def _blobs(folder: Path) -> Iterator[Path]:
    """Where the files of a folder of Hugging Face's cache are."""
    for revision in (folder, *folder.parents):
        model = revision.parent.parent
        if revision.parent.name == "snapshots" and model.name.startswith("models--"):
            blobs = model / "blobs"
            if not blobs.is_symlink():
                yield blobs
