"""The safetensors files of a folder: one file, or shards with an index. Names and shapes are known before data is read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dovetail.core.disk import MAX_JSON_BYTES, open_file, parse_json
from dovetail.core.errors import CheckpointError, StoreError, UsageError, one_line, shown
from dovetail.core.types import Array
from dovetail.policies.checkpoints.folder_files import check_size, find_file, read_json

__all__ = ["WeightFiles", "check_file", "tensors_of"]

_MAX_SMALL_BYTES = 16 << 20
_LENGTH_BYTES = 8  # the length of the header, little-endian
_POINTER = b"version https://git-lfs"  # what git has in place of a large file
_TYPES = (
    "F64",
    "F32",
    "F16",
    "BF16",
    "F8_E4M3",
    "F8_E5M2",
    "I64",
    "I32",
    "I16",
    "I8",
    "U64",
    "U32",
    "U16",
    "U8",
    "BOOL",
)
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_file(path: Path) -> Path:
    """The regular file that `path` names. Raise CheckpointError, with its name, for a file that is damaged or truncated."""
    found = find_file(path)
    _shapes(path, found)
    return found


def tensors_of(path: Path) -> dict[str, Array]:
    """All tensors of a small file, float32."""
    check_size(find_file(path), max_bytes=_MAX_SMALL_BYTES)
    with _opened(path, check_file(path)) as file:
        return {key: file.get_tensor(key).float().numpy() for key in file.keys()}  # noqa: SIM118 - no iterator


class WeightFiles:
    """All tensors of a folder by name."""

    def __init__(self, folder: Path) -> None:
        self._files = _find_files(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        self._found: dict[Path, Path] = {}  # a path in the folder may be a link of Hugging Face's cache
        for path, expected in self._files.items():
            self._found[path] = find_file(path)
            shapes = _shapes(path, self._found[path])
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
        """Regular files."""
        return tuple(self._found.values())

    @property
    def num_values(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Tensors on the CPU, mapped from their files, one after another."""
        with ExitStack() as stack:
            opened: dict[Path, Any] = {}
            for key in keys:
                path = self._file_of[key]
                if path not in opened:
                    opened[path] = stack.enter_context(_opened(path, self._found[path]))
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
            f" It has shards but no {_INDEX}. Copy the folder again."
            if shards
            else f" {pickles[0]} may be a pickle, which is a program and is not read: convert it to safetensors."
            if pickles
            else " Copy the folder again."
        )
        raise UsageError(f"{folder} has no model.safetensors and no {_INDEX}.{found}")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index} has no `weight_map` from names to files. Copy the folder again")
    files: dict[Path, set[str]] = {}
    for key, name in names.items():
        if Path(name).name != name:  # a path could lead out of the folder
            raise CheckpointError(
                f"{index} names the file '{shown(name)}', which is not a plain name in the folder"
            )
        files.setdefault(folder / name, set()).add(key)
    if missing := sorted(path.name for path in files if not path.is_file()):
        raise CheckpointError(f"{folder} lacks {_some(missing)}, which {_INDEX} names. Copy the folder again")
    return {path: frozenset(keys) for path, keys in files.items()}


@contextmanager
def _opened(path: Path, found: Path) -> Iterator[Any]:
    try:
        with safe_open(found, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise _damaged(path, one_line(error)) from error


def _shapes(path: Path, found: Path) -> dict[str, tuple[int, ...]]:
    _check_header(path, found)
    with _opened(path, found) as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no iterator
    if empty := [key for key, shape in shapes.items() if len(shape) > 1 and 0 in shape]:
        raise _damaged(path, f"'{shown(empty[0])}' has no numbers")  # its other axes could have any length
    return shapes


def _check_header(path: Path, found: Path) -> None:
    """The library would accept a header of 100 MB, and holes of any size."""
    try:
        with open_file(found) as file:
            start = file.read(_LENGTH_BYTES)
            if (
                start == _POINTER[:_LENGTH_BYTES]
                and file.read(len(_POINTER) - _LENGTH_BYTES) == _POINTER[_LENGTH_BYTES:]
            ):
                raise CheckpointError(f"{path} is only a pointer of Git LFS. Run `git lfs pull` in its folder")
            length = int.from_bytes(start, "little")
            if length > min(MAX_JSON_BYTES, os.fstat(file.fileno()).st_size):
                raise _damaged(path, f"its header should have {length} bytes")
            header = parse_json(file.read(length))
        kinds = [facts["dtype"] for name, facts in header.items() if name != "__metadata__"]
    except (StoreError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, one_line(error)) from error
    if unknown := [kind for kind in kinds if kind not in _TYPES]:
        raise _damaged(path, f"numbers of type {shown(unknown[0])} are unknown here")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged or truncated ({shown(why, max_chars=300)}). Copy the file again")


def _some(names: list[str]) -> str:
    return ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
