"""Replaces the keys of older versions in layers, overrides and stored configs, by the `RENAMED` of their models."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.config._explain import model_at
from dovetail.config._tree import Node, from_plain, merge, put
from dovetail.config.model import Config, OldKeys, old_keys, translate
from dovetail.config.schema import NAMED_SECTIONS, SECTION_KINDS, RunConfig
from dovetail.core.errors import PluginError

__all__ = ["model_or_none", "translate_path", "translate_sections", "with_former_values"]


def translate_path(path: Sequence[str], tree: Node, found: OldKeys) -> list[str] | None:
    """The path of an override with old keys replaced; None if one of them was removed."""
    new: list[str] = []
    for depth, key in enumerate(path):
        model = model_or_none(new, tree)
        renamed, removed = old_keys(model) if model else ({}, {})
        if key in removed:
            found.remove(tuple(path), removed[key])
            return None
        if key in renamed:
            found.rename(tuple(path[: depth + 1]), (*new, renamed[key]))
        new.append(renamed.get(key, key))
    return new


def translate_sections(layer: Node, tree: Node, found: OldKeys) -> Node:
    """Replace the old keys of a layer, before it is merged onto `tree`: that may have the types of its sections."""
    layer = translate(RunConfig, layer, found)
    merged = merge(tree, layer)
    return Node(
        {key: _translate_section(key, node, merged, found) for key, node in layer.value.items()}, layer.where
    )


def _translate_section(key: str, node: Node, merged: Node, found: OldKeys) -> Node:
    if key not in SECTION_KINDS:
        return node
    if isinstance(node.value, list):
        models = [model_or_none((key, str(index)), merged) for index in range(len(node.value))]
        items = [
            translate(model, item, found, (key, index)) if model else item
            for index, (item, model) in enumerate(zip(node.value, models, strict=True))
        ]
        return Node(items, node.where)
    if key in NAMED_SECTIONS and isinstance(node.value, dict):
        named = {}
        for name, one in node.value.items():
            model = model_or_none((key, name), merged) if isinstance(one.value, dict) else None
            named[name] = translate(model, one, found, (key, name)) if model else one
        return Node(named, node.where)
    model = model_or_none((key,), merged)
    return translate(model, node, found, (key,)) if model else node


def with_former_values(tree: Node) -> Node:
    """The config of a run folder with the values that newer settings had before they existed."""
    for key, node in tree.value.items():
        model = model_or_none((key,), tree) if key in SECTION_KINDS and isinstance(node.value, dict) else None
        for name, value in (model.BEFORE if model else {}).items():
            if name not in node.value:
                tree = put(tree, [key, name], from_plain(value, f"before '{key}.{name}' existed"))
    return tree


def model_or_none(path: Sequence[str], tree: Node) -> type[Config] | None:
    try:
        return model_at(tuple(path), tree, RunConfig)
    except PluginError:  # validation explains it
        return None
