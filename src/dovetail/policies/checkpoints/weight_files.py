"""The safetensors files of a folder: one file, or shards with an index. Names and shapes are known before data is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dovetail.core.errors import CheckpointError, UsageError, one_line
from dovetail.core.types import Array

__all__ = ["WeightFiles", "check_file", "read_json", "tensors_of"]

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raise CheckpointError for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON ({one_line(error)}). Copy the folder again"
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no JSON object. Copy the folder again")
    return data


def check_file(path: Path) -> None:
    """Raise CheckpointError, with the file's name, for a file that is damaged or truncated."""
    _shapes(path)


def tensors_of(path: Path) -> dict[str, Array]:
    """All tensors of a small file, float32."""
    check_file(path)
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key).float().numpy() for key in file.keys()}  # noqa: SIM118 - no iterator


class WeightFiles:
    """All tensors of a folder by name."""

    def __init__(self, folder: Path) -> None:
        self._files = _find_files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        for path, expected in self._files.items():
            shapes = _shapes(path)
            if missing := sorted(expected - shapes.keys()):
                raise CheckpointError(
                    f"{path} lacks {_some(missing)}, which the index names. Copy the folder again"
                )
            for key, shape in shapes.items():
                if key in self._file_of:
                    raise CheckpointError(f"{path} and {self._file_of[key].name} both hold '{key}'. Remove one")
                self.shapes[key], self._file_of[key] = shape, path

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self._files)

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Tensors on the CPU, mapped from their files, one after another."""
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}
            for key in keys:
                path = self._file_of[key]
                if path not in opened:
                    opened[path] = stack.enter_context(safe_open(path, framework="pt"))
                yield key, opened[path].get_tensor(key)


def _find_files(folder: Path) -> Mapping[Path, frozenset[str]]:
    """The files, and the names that the index expects in each."""
    index = folder / _INDEX
    if not index.is_file():
        path = folder / "model.safetensors"
        if path.is_file():
            return {path: frozenset()}
        shards = sorted(p.name for p in folder.glob("*.safetensors") if p.name.startswith("model-"))
        pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
        found = (
            f" It has shards but no {_INDEX}."
            if shards
            else f" {pickles[0]} may be a pickle, which is a program and is not read: convert it to safetensors."
            if pickles
            else ""
        )
        raise UsageError(f"{folder} has no model.safetensors and no {_INDEX}.{found}")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index} has no `weight_map` from names to files. Copy the folder again")
    files: dict[Path, set[str]] = {}
    for key, name in names.items():
        if Path(name).name != name:  # a path could lead out of the folder
            raise CheckpointError(f"{index} names the file '{name}', which is not a plain name in the folder")
        files.setdefault(folder / name, set()).add(key)
    if missing := sorted(path.name for path in files if not path.is_file()):
        raise CheckpointError(f"{folder} lacks {_some(missing)}, which {_INDEX} names. Copy the folder again")
    return {path: frozenset(keys) for path, keys in files.items()}


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no iterator
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or truncated ({one_line(error)}). Copy the file again"
        ) from error


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
