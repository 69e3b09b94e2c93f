"""Which stored configs may name code and servers: those of runs that this user made on this machine, or trusts.

The config of a downloaded run folder is untrusted: `robot: {type: "evil:Robot"}` would run code, and `key_env: AWS_KEY`
would send a secret to a server. So a stored config may use built-in plugins only, and of robots, cameras, leaders and
operators only those without a device, a program or a connection (`_WITHOUT_DEVICE`; a new one is refused until it is listed
there). This does not hold if its folder has a mark: an HMAC of this machine, this user, the folder's inode and its config,
with a key that only this user can read. No one else can make the right mark. It does not count while other users may write
to the folder.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.config._tree import normalize_name
from dovetail.config._trust_key import TrustKeyError, make_key, read_key
from dovetail.config.plugins import is_builtin
from dovetail.core.disk import MAX_JSON_BYTES, load_json, read_file, sha256, write_atomic
from dovetail.core.errors import ConfigWarning, PluginError, RunFolderError, StoreError

__all__ = ["MARK", "check_copies", "check_stored", "is_inside", "is_trusted", "mark_new", "mark_trusted"]

MARK = ".trusted"
_CONFIG = "config.yaml"
_READ = (".", _CONFIG, "changes.json", MARK)  # what decides which code a stored config runs
_COPIES = "parts"  # of the components and of the base that a run's policy started from
_COPIED_SECTION = "policy.json"  # the section of a copied base
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_SECTIONS = {  # anywhere in a config: these keys name plugins
    "task": "task",
    "robot": "robot",
    "operator": "operator",
    "operators": "operator",
    "leader": "leader",
    "cameras": "camera",
    "actor": "actor",
    "policy": "policy",
    "base": "policy",
    "labels": "labeler",
    "replay": "replay",
    "algorithm": "algorithm",
}
_WITHOUT_DEVICE: dict[str, frozenset[str]] = {
    # Others of these kinds may name programs, servers, devices and files in any setting.
    "robot": frozenset({"sim", "gym"}),
    "camera": frozenset(),
    "leader": frozenset(),
    "operator": frozenset({"none", "scripted", "browser", "several"}),
}
_OUTSIDE = {  # keys that reach beyond the run folder
    "url": "a server",
    "address": "a server",
    "key_env": "a secret",
    "wandb": "a project of Weights & Biases",
    "kwargs": "arguments of an environment",
    "model_class": "the code of a model",
    "model_config": "arguments of a model",
    "machines": "machines of a cluster",
    "token_file": "a file with a token",
    "api_key_file": "a file with a key",
    "token_env": "a secret",
    "kinematics": "a model of an arm, which may include other files",
    "improve": "other runs and recipes",
}
_PATHS = {  # keys that name files and folders, which may be anywhere on this machine
    "file": "a file outside the run",
    "path": "a device",
    "folder": "a folder outside the run",
    "model_folder": "a folder outside the run",
    "checkpoint": "weights outside the run",
    "stats": "a file outside the run",
    "run": "another run",
    "distill_into": "another run",
    "adapter": "a folder outside the run",
    "tokenizer": "a file outside the run",
}
_DEFAULTS = {"token_env": "DOVETAIL_TOKEN"}


_made_here: set[bytes] = set()  # facts of the folders that this process made


def mark_trusted(folder: Path) -> None:
    """Let the config of this run folder name code and servers, for this user on this machine."""
    try:
        if exposed := _exposed(folder):
            raise RunFolderError(
                f"cannot trust {folder}: {exposed.problem}. {exposed.advice}, and read {_CONFIG} again"
            )
        _write_mark(folder)
    except StoreError as error:
        raise RunFolderError(f"cannot trust {folder}: {error}") from error
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / MARK}: {error.strerror}") from error


def mark_new(folder: Path) -> None:
    """Mark a run folder that this process has made. It stays trusted in this process if no mark can be made."""
    _made_here.add(_facts(folder))
    try:
        _write_mark(folder)
    except TrustKeyError as error:
        message = f"other processes will not trust {folder}, because its mark needs a key: {error}"
        warnings.warn(message, ConfigWarning, stacklevel=3)


def is_trusted(folder: Path) -> bool:
    try:
        if _exposed(folder):
            return False
        facts = _facts(folder)
        if facts in _made_here:
            return True
        mark, key = read_file(folder / MARK, max_bytes=1000), read_key()
        return key is not None and hmac.compare_digest(mark, _mark(facts, key))
    except (OSError, StoreError):
        return False


def check_stored(config: Any, folder: Path, *, file: Path | None = None) -> None:
    """Raise PluginError if a stored config names more than built-in plugins and files of its folder. Imports nothing.

    `file` has the config; by default the folder's config.yaml."""
    for path, what in _named(config, "", folder):
        why, then = f"{folder} was not made by you on this machine or was copied", ""
        if exposed := _exposed(folder):
            why, then = exposed.problem, f"{exposed.advice}. "
        raise PluginError(
            f"{why}, and its config names {what} ({_shown(path)}). {then}Read {file or folder / _CONFIG}. If you trust it, "
            f"run `dovetail trust {folder}` once"
        )


def check_copies(folder: Path) -> None:
    """The same for the copy that a run keeps of its policy's base: it names a plugin, too."""
    for path in sorted((folder / _COPIES).rglob(_COPIED_SECTION)):
        section = load_json(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path), indent=1)
        check_stored({"policy": section}, folder, file=path)


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
            kind = _SECTIONS[key]
            for name in _plugin_names(kind, item):
                if not _is_harmless(kind, name):
                    yield place, f"the {kind} {name[:80]!r}"
        elif key in _OUTSIDE and item and item != _DEFAULTS.get(key):
            yield place, f"{_OUTSIDE[key]} ({str(item)[:80]!r})"
        elif isinstance(item, str) and key in ("type", "id") and ":" in item:
            yield place, f"the code {item[:80]!r}"
        elif (
            key in _PATHS and item and not isinstance(item, Mapping | list | tuple) and not is_inside(item, folder)
        ):
            yield place, f"{_PATHS[key]} ({str(item)[:80]!r})"
        yield from _named(item, place, folder)


def _shown(path: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in path[:200])


def _plugin_names(kind: str, section: Any) -> Iterator[str]:
    """The plugins of a section: one, a list, or for cameras a mapping from their names."""
    if kind == "camera":  # the list of a labeler's cameras names no plugins
        sections: Iterable[Any] = section.values() if isinstance(section, Mapping) else ()
    else:
        sections = section if isinstance(section, list | tuple) else (section,)
    for one in sections:
        name = one.get("type") if isinstance(one, Mapping) else one
        if isinstance(name, str):
            yield name


def _is_harmless(kind: str, name: str) -> bool:
    if kind in _WITHOUT_DEVICE:
        return normalize_name(name) in _WITHOUT_DEVICE[kind]
    return is_builtin(kind, name)


def is_inside(name: Any, folder: Path) -> bool:
    """Whether a path of a config is in the run folder. A relative one starts in the current folder, as for its readers."""
    try:
        return Path(os.path.expanduser(str(name))).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a zero byte, or a loop of links
        return False


class _Exposed(NamedTuple):
    problem: str
    advice: str


def _exposed(folder: Path) -> _Exposed | None:
    """Whether another user could change the config: who owns a file or folder, or may write to it, can."""
    for path in (folder / name for name in _READ):
        try:
            status = os.stat(path, follow_symlinks=path == folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if status.st_uid != os.getuid() or stat.S_ISLNK(status.st_mode):
            return _Exposed(f"{path} is not a file or folder of yours", "Copy the folder with `cp -rL`")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return _Exposed(f"other users may write to {path}", f"Run `chmod go-w {path}`")
    return None


def _write_mark(folder: Path) -> None:
    write_atomic(folder / MARK, _mark(_facts(folder), make_key()), mode=0o600)


def _mark(facts: bytes, key: bytes) -> bytes:
    return hmac.new(key, facts, hashlib.sha256).hexdigest().encode() + b"\n"


def _facts(folder: Path) -> bytes:
    config = sha256(read_file(folder / _CONFIG))
    facts = ("dovetail run folder", _machine_id(), os.getuid(), os.stat(folder).st_ino, config)
    return "\n".join(map(str, facts)).encode()


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        try:
            if text := path.read_text().strip():
                return text
        except OSError:
            continue
    return platform.node()  # a container without a machine id
