"""Which stored configs may name code and servers: those of runs that this user made on this machine, or trusts.

The config of a downloaded run folder is untrusted: `robot: {type: "evil:Robot"}` would run code, and `key_env: AWS_KEY`
would send a secret to a server. So a stored config may use built-in plugins only, unless its folder has a mark that is
made from this machine, this user and the folder's inode. A folder from elsewhere cannot contain the right mark.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.config.plugins import is_builtin
from dovetail.core.disk import read_file, sha256, write_atomic
from dovetail.core.errors import PluginError, RunFolderError, StoreError

__all__ = ["MARK", "check_stored", "is_trusted", "mark_trusted"]

MARK = ".trusted"
_CONFIG = "config.yaml"
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_SECTIONS = {  # anywhere in a config: these keys name plugins
    "task": "task",
    "robot": "robot",
    "operator": "operator",
    "actor": "actor",
    "policy": "policy",
    "labels": "labeler",
    "replay": "replay",
    "algorithm": "algorithm",
}
_OUTSIDE = {  # keys that reach beyond the run folder
    "url": "a server",
    "address": "a server",
    "key_env": "a secret",
    "wandb": "a project of Weights & Biases",
    "kwargs": "arguments of an environment",
    "machines": "machines of a cluster",
    "token_file": "a file with a token",
    "token_env": "a secret",
}
_PATHS = {  # keys that name files and folders, which may be anywhere on this machine
    "file": "a file outside the run",
    "path": "a device",
    "folder": "a folder outside the run",
    "model_folder": "a folder outside the run",
    "checkpoint": "weights outside the run",
}
_DEFAULTS = {"token_env": "DOVETAIL_TOKEN"}


def mark_trusted(folder: Path) -> None:
    """Let the config of this run folder name code and servers, for this user on this machine."""
    try:
        write_atomic(folder / MARK, _mark(folder))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / MARK}: {error.strerror}") from error


def is_trusted(folder: Path) -> bool:
    try:
        return os.stat(folder).st_uid == os.getuid() and read_file(folder / MARK, max_bytes=1000) == _mark(folder)
    except (OSError, StoreError):
        return False


def check_stored(config: Any, folder: Path) -> None:
    """Raise PluginError if a stored config names more than built-in plugins and files of its folder. Imports nothing."""
    for path, what in _named(config, "", folder):
        raise PluginError(
            f"{folder} was not made by you on this machine, and its config names {what} ({path}). Read "
            f"{folder / _CONFIG}. If you trust it, run `dovetail trust {folder}` once"
        )


def _named(value: Any, path: str, folder: Path) -> Iterator[tuple[str, str]]:
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _named(item, f"{path}.{number}", folder)
        return
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        place = f"{path}.{key}".lstrip(".")
        if key in _SECTIONS:
            for section in item if isinstance(item, list | tuple) else (item,):
                name = section.get("type") if isinstance(section, Mapping) else section
                if isinstance(name, str) and not is_builtin(_SECTIONS[key], name):
                    yield place, f"the {_SECTIONS[key]} '{name[:80]}'"
        elif key in _OUTSIDE and item and item != _DEFAULTS.get(key):
            yield place, f"{_OUTSIDE[key]} ({str(item)[:80]!r})"
        elif isinstance(item, str) and key in ("type", "id") and ":" in item:
            yield place, f"the code '{item[:80]}'"
        elif (
            key in _PATHS
            and item
            and not isinstance(item, Mapping | list | tuple)
            and not _is_inside(item, folder)
        ):
            yield place, f"{_PATHS[key]} ({str(item)[:80]!r})"
        yield from _named(item, place, folder)


def _is_inside(name: Any, folder: Path) -> bool:
    """Whether a path of a config is in the run folder. A relative one starts in the current folder, as for its readers."""
    try:
        return Path(os.path.expanduser(str(name))).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a zero byte, or a loop of links
        return False


def _mark(folder: Path) -> bytes:
    config = sha256(read_file(folder / _CONFIG))
    facts = ("dovetail run folder", _machine_id(), os.getuid(), os.stat(folder).st_ino, config)
    return sha256("\n".join(map(str, facts)).encode()).encode() + b"\n"


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        try:
            if text := path.read_text().strip():
                return text
        except OSError:
            continue
    return platform.node()  # a container without a machine id
