"""From recipe names, files and `key.sub=value` to one validated RunConfig, and to disk and back.

config = load(["peg-insertion", "lab.yaml"], ["run.seed=3", "operator=scripted"])
save(config, run_folder)
assert load_saved(run_folder) == config

A recipe or file may say `base: OTHER`, a recipe or a file beside it, and then only what differs from that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from dovetail.config import _yaml
from dovetail.config._explain import explain
from dovetail.config._tree import Node, from_plain, merge, put
from dovetail.config.cluster import RobotPlace
from dovetail.config.model import Config
from dovetail.config.schema import DEFAULT_SECTIONS, SECTION_KINDS, RunConfig
from dovetail.core.disk import write_atomic
from dovetail.core.errors import ConfigError, RunFolderError, did_you_mean

__all__ = [
    "SAVED_NAME",
    "Recipe",
    "config_hash",
    "dump_yaml",
    "load",
    "load_saved",
    "load_section",
    "load_settings",
    "recipes",
    "robot_config",
    "save",
]

SAVED_NAME = "config.yaml"
Settings = TypeVar("Settings", bound=Config)
_HASH_LINE = re.compile(r"^# hash: ([0-9a-f]{12})$", re.MULTILINE)


class Recipe(NamedTuple):
    name: str
    description: str
    task: str


def load(sources: Sequence[str | Path], overrides: Sequence[str] = ()) -> RunConfig:
    """Merge recipes and files in order, then overrides, and validate. Every problem is one line."""
    if not sources:
        raise ConfigError("name a recipe or a config file; `dovetail recipes` lists what there is")
    tree = from_plain(DEFAULT_SECTIONS, "default")
    for source in sources:
        tree = merge(tree, _read(source))
    parsed = [_parse_override(text) for text in overrides]
    parsed.sort(key=lambda override: override[0][-1] != "type")  # types first: a new one drops the other keys
    for path, value in parsed:
        if len(path) == 1:
            value = _expand_section(path[0], value)
        tree = put(tree, path, value)
    return _validate(tree)


def load_settings(model: type[Settings], overrides: Sequence[str]) -> Settings:
    """Settings that are no run's, from `key.sub=value` alone; as strict, and problems in one line too."""
    tree = from_plain({}, "")
    for path, value in sorted(map(_parse_override, overrides), key=lambda override: override[0][-1] != "type"):
        tree = put(tree, path, value)
    try:
        return model.model_validate_json(json.dumps(tree.plain()), strict=True)
    except ValidationError as problem:
        raise explain(problem, tree, root=model) from problem


def load_section(model: type[Settings], key: str, sources: Sequence[str | Path]) -> Settings:
    """One section of recipes and files, which need not be whole runs; the others are not looked at."""
    tree = from_plain({key: {}}, "default")
    for source in sources:
        given = _read(source)
        tree = merge(tree, Node({key: given.value[key]} if key in given.value else {}, given.where))
    try:
        return model.model_validate_json(json.dumps(tree.value[key].plain()), strict=True)
    except ValidationError as problem:
        raise explain(problem, tree.value[key], root=model) from problem


def robot_config(config: RunConfig, name: str, place: RobotPlace) -> RunConfig:
    """The run as one of its robots sees it: what differs there is laid over it, and what fits no more is refused."""
    differs = {"task": place.task, "robot": place.robot, "operator": place.operator}
    over = from_plain({key: value for key, value in differs.items() if value}, f"cluster.robots.{name}")
    return _validate(merge(from_plain(_plain(config), "the run"), over))


def config_hash(config: RunConfig) -> str:
    """Twelve hex digits that name a resolved config, however and in whatever order it was written."""
    return _hash(_plain(config))


def dump_yaml(config: RunConfig) -> str:
    """The resolved config, every default spelt out; loading it gives an equal config."""
    return _yaml.dump(_plain(config))


def save(config: RunConfig, folder: Path) -> Path:
    """Write `config.yaml` with its hash: whole, or not at all."""
    path = Path(folder) / SAVED_NAME
    header = f"# Resolved by Dovetail; a changed copy is refused.\n# hash: {config_hash(config)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (header + dump_yaml(config)).encode())
    except OSError as problem:
        raise RunFolderError(f"cannot write {path}: {problem.strerror}; check the run folder") from problem
    return path


def load_saved(folder: Path) -> RunConfig:
    """The config of a run folder, after checking that it is what `save` wrote."""
    path = Path(folder) / SAVED_NAME
    if not path.is_file():
        raise RunFolderError(f"no {SAVED_NAME} in {folder}: it is not a run folder")
    text = _text(path, str(path))
    tree = _yaml.parse(text, name=str(path))
    stated = _HASH_LINE.search(text)
    if stated is None:
        raise ConfigError(f"{path}: the '# hash:' line is missing, so it is not a saved run config")
    # Compared as written, not as validated: a newer Dovetail with a new default must still read an old run.
    if _hash(tree.plain()) != stated[1]:
        raise ConfigError(
            f"{path}: changed since it was saved (hash {_hash(tree.plain())}, saved as {stated[1]}); "
            "undo the change, or start a new run from a copy"
        )
    return _validate(tree)


def recipes() -> list[Recipe]:
    """What ships: name, the first comment line, and the task (the robot, where that brings its own)."""
    found = []
    for name, file in sorted(_recipe_files().items()):
        text = file.read_text(encoding="utf-8")
        comment = next((line for line in text.splitlines() if line.startswith("#")), "#")
        data = _read(name).plain()
        section = data.get("task") or data.get("robot") or {}
        found.append(Recipe(name, comment.lstrip("# ").rstrip(), section.get("type", "")))
    return found


def _recipe_files() -> dict[str, Traversable]:
    folder = files("dovetail.config").joinpath("recipes")
    return {
        file.name.removesuffix(".yaml").replace("_", "-"): file
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def _read(source: str | Path, *, above: Sequence[str] = ()) -> Node:
    """A source as a tree, upon its base if it has one; how it is written decides whether it is a recipe's name or a file's
    path."""
    shipped = _recipe_files()
    name = str(source).replace("_", "-")
    if isinstance(source, str) and name in shipped:
        file = shipped[name]
        tree = _yaml.parse(file.read_text(encoding="utf-8"), name=file.name)
        return _on_base(_top_level(tree, file.name), folder=Path(), above=(*above, name))
    path = Path(source)
    if not os.path.exists(path):  # path.exists() would raise in a folder that may not be entered
        stem = path.stem.replace("_", "-")
        if isinstance(source, Path) or path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
            hint = f" Did you mean the recipe '{stem}'?" if stem in shipped else ""
            raise ConfigError(f"config file not found: {source}.{hint}")
        raise ConfigError(f"no recipe or file named '{source}'.{did_you_mean(name, shipped)}")
    tree = _yaml.parse(_text(path, str(source)), name=str(source), is_json=path.suffix == ".json")
    return _on_base(_top_level(tree, str(source)), folder=path.parent, above=(*above, str(path)))


def _on_base(tree: Node, *, folder: Path, above: Sequence[str]) -> Node:
    if "base" not in tree.value:
        return tree
    rest = dict(tree.value)
    base: Node = rest.pop("base")
    if not isinstance(base.value, str):
        raise ConfigError(f"{base.where}: base should be the name of a recipe, or of a file beside this one")
    is_recipe = base.value.replace("_", "-") in _recipe_files()
    source = base.value.replace("_", "-") if is_recipe else str(folder / base.value)
    if source in above:
        raise ConfigError(f"{base.where}: base '{base.value}' is built on this one itself")
    return merge(_read(source, above=above), Node(rest, tree.where))


def _text(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{name}: not a text file in UTF-8 (byte {problem.start})") from problem
    except OSError as problem:
        raise ConfigError(f"{name}: cannot be read: {problem.strerror}") from problem


def _top_level(tree: Node, name: str) -> Node:
    if tree.value is None:  # empty, or nothing but comments
        return Node({}, name)
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else repr(tree.value)
        raise ConfigError(f"{tree.where}: the top level should be a mapping (key: value), got {kind}")
    return _sections(Node(tree.value, name))


def _sections(tree: Node) -> Node:
    return Node({key: _expand_section(key, value) for key, value in tree.value.items()}, tree.where)


def _expand_section(key: str, node: Node) -> Node:
    """`robot: sim` is short for `robot: {type: sim}`; long, so that it merges."""
    if key not in SECTION_KINDS:
        return node
    if isinstance(node.value, str):
        return Node({"type": node}, node.where)
    if key == "labels" and isinstance(node.value, list):
        return Node([_expand_section(key, item) for item in node.value], node.where)
    return node


def _parse_override(text: str) -> tuple[list[str], Node]:
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    where = f"override '{text}'"
    if not equals or not all(path):
        raise ConfigError(f"{where}: should look like key.sub=value")
    return path, _yaml.parse(value, name=where, one_value=True)


def _validate(tree: Node) -> RunConfig:
    plain = tree.plain()
    try:
        # Through JSON, because pydantic's strict mode knows there that a list may be a tuple and text a path.
        return RunConfig.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as problem:
        raise explain(problem, tree) from problem


def _plain(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _hash(plain: Any) -> str:
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as problem:
        raise ConfigError(f"a config holds a number that is not finite: {problem}") from problem
    return hashlib.sha256(text.encode()).hexdigest()[:12]
