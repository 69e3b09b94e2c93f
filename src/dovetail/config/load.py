"""Load recipes, files and `key.sub=value` overrides into one validated RunConfig; save it to a run folder and read it back.

config = load(["peg-insertion", "lab.yaml"], ["run.seed=3", "operator=scripted"])
save(config, run_folder)
assert load_saved(run_folder).config == config

A recipe or file may contain `base: OTHER` (a recipe, or a file in the same folder) and then only the differences.
A JSON file may also be a training config of EmbodiChain.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from dovetail.config import _yaml
from dovetail.config._explain import explain
from dovetail.config._old_keys import model_or_none, translate_path, translate_sections, with_former_values
from dovetail.config._sources import Source, expand_section, merge_all, read_source, recipe_files, top_level
from dovetail.config._tree import Node, dotted, from_plain, merge, put
from dovetail.config.changes import read_changes
from dovetail.config.cluster import RobotPlace
from dovetail.config.model import Config, OldKeys, translate
from dovetail.config.schema import DEFAULT_SECTIONS, RunConfig
from dovetail.config.trust import check_copies, check_stored, is_trusted, mark_new
from dovetail.core.disk import read_file, write_atomic
from dovetail.core.errors import ConfigError, ConfigWarning, RunFolderError, StoreError

__all__ = [
    "SAVED_NAME",
    "Overrides",
    "Recipe",
    "SavedConfig",
    "Source",
    "config_hash",
    "dump_yaml",
    "load",
    "load_saved",
    "load_section",
    "load_settings",
    "plain_overrides",
    "recipes",
    "robot_config",
    "save",
    "saved_values",
]

SAVED_NAME = "config.yaml"
Settings = TypeVar("Settings", bound=Config)
Overrides = Sequence[str] | Mapping[str, Any]
"""`["run.seed=3"]`, or `{"run.seed": 3}`."""
_MAX_SAVED_BYTES = 256 << 10  # parsed YAML takes 500 times its size
_HASH_LINE = re.compile(r"^# hash: ([0-9a-f]{12})$", re.MULTILINE)


class Recipe(NamedTuple):
    name: str
    description: str
    task: str


class SavedConfig(NamedTuple):
    """The config of a run folder, and the hash that it was saved with: the run's identity in checkpoints and labels."""

    config: RunConfig
    hash: str


def load(sources: Sequence[Source], overrides: Overrides = ()) -> RunConfig:
    """Merge recipes and files in order, then overrides, and validate. An error is one line."""
    if not sources:
        raise ConfigError("name a recipe or a config file; `dovetail recipes` lists the recipes")
    found = OldKeys()
    tree = from_plain(DEFAULT_SECTIONS, "default")
    for source in sources:
        for layer in read_source(source):
            tree = merge(tree, translate_sections(layer, tree, found))
    tree = _override(tree, overrides, found)
    found.warn()
    return _validate(tree)


def load_settings(model: type[Settings], overrides: Sequence[str]) -> Settings:
    """Read settings that are not part of a run, from `key.sub=value` alone; as strict as `load`."""
    found = OldKeys()
    tree = from_plain({}, "")
    for path, value in _parse_overrides(overrides):
        tree = put(tree, path, value)
    tree = translate(model, tree, found)
    found.warn()
    return _validate_as(model, tree)


def load_section(model: type[Settings], key: str, sources: Sequence[str | Path]) -> Settings:
    """Read one section of recipes and files, which may be incomplete; the other sections are ignored."""
    found = OldKeys()
    tree = from_plain({key: {}}, "default")
    for source in sources:
        for layer in read_source(source):
            given = {key: translate(model, layer.value[key], found, (key,))} if key in layer.value else {}
            tree = merge(tree, Node(given, layer.where))
    found.warn()
    return _validate_as(model, tree.value[key])


def robot_config(config: RunConfig, name: str, place: RobotPlace) -> RunConfig:
    """The config of one robot of a run: its own `task`, `robot`, `cameras` and `operator` settings replace the run's."""
    differs = {"task": place.task, "robot": place.robot, "cameras": place.cameras, "operator": place.operator}
    tree = from_plain(_plain(config), "the run")
    over = from_plain({key: value for key, value in differs.items() if value}, f"cluster.robots.{name}")
    return _validate(merge(tree, translate_sections(over, tree, OldKeys())))


def config_hash(config: RunConfig) -> str:
    """Twelve hex digits that identify a resolved config; the order and spelling of its keys do not matter."""
    return _hash(_plain(config))


def dump_yaml(config: RunConfig) -> str:
    """The resolved config with every default written out; loading it gives an equal config."""
    return _yaml.dump(_plain(config))


def save(config: RunConfig, folder: Path) -> Path:
    """Write `config.yaml` with its hash, atomically, and the mark that this user trusts it."""
    path = Path(folder) / SAVED_NAME
    header = f"# Resolved by Dovetail; a changed copy is refused.\n# hash: {config_hash(config)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        write_atomic(
            path, (header + dump_yaml(config)).encode(), mode=0o644
        )  # a mark needs that others cannot write
        mark_new(path.parent)
    except OSError as problem:
        raise RunFolderError(f"cannot write {path}: {problem.strerror}; check the run folder") from problem
    return path


def load_saved(
    folder: Path, overrides: Overrides = (), *, quiet: bool = False, trusted: bool = False
) -> SavedConfig:
    """Read the config of a run folder, after checking that it is what `save` wrote, with what was changed in a resume since.
    Keys of older versions are translated, with one warning for all of them (none if `quiet`). Overrides change the config,
    not the hash.

    Raises PluginError if the folder is not this user's and its config names code or servers (see `trust`). `trusted`: the
    caller has checked that already, on another machine of the cluster."""
    try:
        return _load_saved(Path(folder), overrides, quiet=quiet, trusted=trusted)
    except RecursionError:
        raise ConfigError(f"{Path(folder) / SAVED_NAME}: nested too deeply") from None


def saved_values(folder: Path) -> dict[str, Any]:
    """The config of a run folder as plain values, with the checks of `load_saved` but without loading its plugins."""
    tree, _ = _read_saved(Path(folder), trusted=False)
    values: dict[str, Any] = top_level(tree, SAVED_NAME).plain()
    return values


def _load_saved(folder: Path, overrides: Overrides, *, quiet: bool, trusted: bool) -> SavedConfig:
    tree, saved_hash = _read_saved(folder, trusted=trusted)
    found = OldKeys()
    tree = translate_sections(top_level(tree, str(folder / SAVED_NAME)), tree, found)
    tree = with_former_values(tree)
    if not quiet and (found.renamed or found.removed):
        message = f"config of {folder} was written by an older version: {found}"
        warnings.warn(message, ConfigWarning, stacklevel=3)
    changes = read_changes(folder)
    if not trusted and not is_trusted(folder):
        check_stored([{key.split(".")[-1]: value} for key, value in changes.items()], folder)
    given = OldKeys()
    tree = _override(tree, changes, given)
    if not trusted and not is_trusted(folder):
        check_stored(
            tree.plain(), folder
        )  # again: a change or an old name may have become a key that reaches outside
    tree = _override(tree, overrides, given)
    given.warn()
    return SavedConfig(_validate(tree), saved_hash)


def _read_saved(folder: Path, *, trusted: bool) -> tuple[Node, str]:
    path = folder / SAVED_NAME
    if not path.is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no {SAVED_NAME}")
    text = _stored_text(path)
    tree = _yaml.parse(text, name=str(path))
    stated = _HASH_LINE.search(text)
    if stated is None:
        raise ConfigError(f"{path}: the '# hash:' line is missing, so it is not a saved run config")
    # The hash covers the file as written, before old keys are translated and new defaults are added.
    if _hash(tree.plain()) != stated[1]:
        raise ConfigError(
            f"{path}: changed since it was saved (hash {_hash(tree.plain())}, saved as {stated[1]}); "
            "undo the change, or start a new run from a copy"
        )
    if not trusted and not is_trusted(folder):
        check_stored(tree.plain(), folder)
        check_copies(folder)
    return tree, stated[1]


def plain_overrides(overrides: Overrides) -> dict[str, Any]:
    """Overrides as values by dotted key."""
    return {dotted(path): value.plain() for path, value in _parse_overrides(overrides)}


def recipes() -> list[Recipe]:
    """The recipes of the package: name, first comment line, and task (or the robot, if it brings its own task)."""
    found = []
    for name, file in sorted(recipe_files().items()):
        text = file.read_text(encoding="utf-8")
        comment = next((line for line in text.splitlines() if line.startswith("#")), "#")
        data = merge_all(read_source(name)).plain()
        section = data.get("task") or data.get("robot") or {}
        found.append(Recipe(name, comment.lstrip("# ").rstrip(), section.get("type", "")))
    return found


def _stored_text(path: Path) -> str:
    try:
        return read_file(path, max_bytes=_MAX_SAVED_BYTES).decode("utf-8-sig")
    except StoreError as problem:
        raise ConfigError(str(problem)) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path}: not a text file in UTF-8 (byte {problem.start})") from problem


def _parse_overrides(overrides: Overrides) -> list[tuple[list[str], Node]]:
    """Paths and values, those that set a `type` first: a new type drops the other keys of its section."""
    if isinstance(overrides, Mapping):
        parsed = [
            (key.split("."), from_plain(value, f"override '{key}={value}'")) for key, value in overrides.items()
        ]
    else:
        parsed = [_parse_override(text) for text in overrides]
    return sorted(parsed, key=lambda override: override[0][-1] != "type")


def _parse_override(text: str) -> tuple[list[str], Node]:
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    where = f"override '{text}'"
    if not equals or not all(path):
        raise ConfigError(f"{where}: should look like key.sub=value")
    return path, _yaml.parse(value, name=where, one_value=True)


def _override(tree: Node, overrides: Overrides, found: OldKeys) -> Node:
    given: dict[str, list[str]] = {}
    for old, value in _parse_overrides(overrides):
        path = translate_path(old, tree, found)
        if path is None:
            continue
        other = given.setdefault(dotted(path), old)
        if other != old:
            raise ConfigError(
                f"{value.where}: '{dotted(old)}' and '{dotted(other)}' are the same setting: give one"
            )
        if len(path) == 1:
            value = translate_sections(Node({path[0]: expand_section(path[0], value)}, ""), tree, found).value[
                path[0]
            ]
        elif isinstance(value.value, dict) and (model := model_or_none(path, tree)):
            value = translate(model, value, found, tuple(path))
        tree = put(tree, path, value)
    return tree


def _validate(tree: Node) -> RunConfig:
    return _validate_as(RunConfig, tree)


def _validate_as(model: type[Settings], tree: Node) -> Settings:
    try:
        # JSON, because pydantic's strict mode then accepts a list for a tuple and text for a path.
        return model.model_validate_json(json.dumps(tree.plain()), strict=True)
    except ValidationError as problem:
        raise explain(problem, tree, root=model) from problem


def _plain(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _hash(plain: Any) -> str:
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as problem:
        raise ConfigError(f"a config holds a number that is not finite: {problem}") from problem
    return hashlib.sha256(text.encode()).hexdigest()[:12]
