"""Reads recipes, files and mappings as layers of a config: trees of values with the places where they were written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from dovetail.config import _yaml
from dovetail.config._tree import Node, from_plain, merge
from dovetail.config.embodichain import convert, is_embodichain
from dovetail.config.schema import NAMED_SECTIONS, SECTION_KINDS
from dovetail.core.errors import ConfigError, ConfigNote, ConfigWarning, did_you_mean

__all__ = ["Source", "expand_section", "merge_all", "read_source", "recipe_files", "top_level"]

Source = str | Path | Mapping[str, Any]
"""The name of a recipe, the path of a file, or a mapping with the sections of a file."""


def recipe_files() -> dict[str, Traversable]:
    folder = files("dovetail.config").joinpath("recipes")
    return {
        file.name.removesuffix(".yaml").replace("_", "-"): file
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def read_source(source: Source, *, above: Sequence[str] = ()) -> list[Node]:
    """A source as layers to merge in order: its bases first, then the source itself."""
    if isinstance(source, Mapping):
        return _with_base(top_level(from_plain(dict(source), "config"), "config"), folder=Path(), above=above)
    shipped = recipe_files()
    name = str(source).replace("_", "-")
    if isinstance(source, str) and name in shipped:
        file = shipped[name]
        tree = _yaml.parse(file.read_text(encoding="utf-8"), name=file.name)
        return _with_base(top_level(tree, file.name), folder=Path(), above=(*above, name))
    path = Path(source)
    if not os.path.exists(path):  # path.exists() raises in a folder without permission to enter
        stem = path.stem.replace("_", "-")
        if isinstance(source, Path) or path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
            hint = f" Did you mean the recipe '{stem}'?" if stem in shipped else ""
            raise ConfigError(f"config file not found: {source}.{hint}")
        raise ConfigError(f"no recipe or file named '{source}'.{did_you_mean(name, shipped)}")
    tree = _yaml.parse(_text(path, str(source)), name=str(source), is_json=path.suffix == ".json")
    if is_embodichain(tree):
        return _read_embodichain(tree, path)
    return _with_base(top_level(tree, str(source)), folder=path.parent, above=(*above, str(path)))


def _read_embodichain(tree: Node, path: Path) -> list[Node]:
    """EmbodiChain's training config as layers, with one line for each of its settings."""
    imported = convert(tree, folder=path.parent)
    for line in imported.mapped:
        warnings.warn(f"{path.name}: {line}", ConfigNote, stacklevel=4)
    for line in imported.unmapped:
        warnings.warn(f"{path.name}: not used: {line}", ConfigWarning, stacklevel=4)
    layers = [_sections(imported.tree)]
    if imported.recipe is not None:
        recipe = merge_all(read_source(imported.recipe))
        world = {key: recipe.value[key] for key in ("task", "robot", "safety") if key in recipe.value}
        layers.insert(0, Node(world, recipe.where))
    return layers


def _with_base(tree: Node, *, folder: Path, above: Sequence[str]) -> list[Node]:
    if "base" not in tree.value:
        return [tree]
    rest = dict(tree.value)
    base: Node = rest.pop("base")
    if not isinstance(base.value, str):
        raise ConfigError(f"{base.where}: base should be the name of a recipe, or of a file in the same folder")
    is_recipe = base.value.replace("_", "-") in recipe_files()
    source = base.value.replace("_", "-") if is_recipe else str(folder / base.value)
    if source in above:
        raise ConfigError(f"{base.where}: base '{base.value}' has this file as its own base")
    return [*read_source(source, above=above), Node(rest, tree.where)]


def merge_all(layers: Sequence[Node]) -> Node:
    tree = layers[0]
    for layer in layers[1:]:
        tree = merge(tree, layer)
    return tree


def _text(path: Path, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{name}: not a text file in UTF-8 (byte {problem.start})") from problem
    except OSError as problem:
        raise ConfigError(f"{name}: cannot be read: {problem.strerror}") from problem


def top_level(tree: Node, name: str) -> Node:
    if tree.value is None:  # empty, or nothing but comments
        return Node({}, name)
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else repr(tree.value)
        raise ConfigError(f"{tree.where}: the top level should be a mapping (key: value), got {kind}")
    return _sections(Node(tree.value, name))


def _sections(tree: Node) -> Node:
    return Node({key: expand_section(key, value) for key, value in tree.value.items()}, tree.where)


def expand_section(key: str, node: Node) -> Node:
    """`robot: sim` is short for `robot: {type: sim}`; long, so that it merges."""
    if key not in SECTION_KINDS:
        return node
    if key in NAMED_SECTIONS and isinstance(node.value, dict):
        named = {
            name: Node({"type": one}, one.where) if isinstance(one.value, str) else one
            for name, one in node.value.items()
        }
        return Node(named, node.where)
    if isinstance(node.value, str):
        return Node({"type": node}, node.where)
    if key == "labels" and isinstance(node.value, list):
        return Node([expand_section(key, item) for item in node.value], node.where)
    return node
