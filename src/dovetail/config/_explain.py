"""Turn pydantic's errors into one line: where the value was written, what is wrong, what is valid."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dovetail.config._tree import Node, Path, dotted
from dovetail.config.model import ChoosesModel, Config, nested_models, settings
from dovetail.config.plugins import BUILTIN, settings_of
from dovetail.config.schema import NAMED_SECTIONS, SECTION_KINDS, RunConfig
from dovetail.core.errors import ConfigError, PluginError, UsageError, did_you_mean

__all__ = ["explain", "model_at"]

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text (quote it)",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "plugin_section": "a mapping with a type, or the bare name of a plugin",
    "none_required": "null",
}

_MAX_PROBLEMS = 8
_FIRST = ("extra_forbidden", "plugin", "plugin_type")  # a misspelled key may also be reported as missing


def explain(problem: ValidationError, tree: Node, *, root: type[Config] = RunConfig) -> UsageError:
    """All wrong keys in one line, the most useful first. `root` is the model of the whole tree."""
    ranked = sorted(problem.errors(include_url=False), key=lambda error: error["type"] not in _FIRST)
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in ranked:
        by_path.setdefault(_path(error, tree), []).append(error)
    lines, last_where = [], None
    for same in list(by_path.values())[:_MAX_PROBLEMS]:
        where, what = _line(same[0], same, tree, root)
        lines.append(what if where == last_where else f"{where}: {what}")
        last_where = where
    more = f" (and {len(by_path) - _MAX_PROBLEMS} more)" if len(by_path) > _MAX_PROBLEMS else ""
    kind = PluginError if ranked[0]["type"] in ("plugin", "plugin_type") else ConfigError
    return kind(functools.reduce(_join, lines) + more)


def _join(first: str, second: str) -> str:
    return f"{first}{'' if first.endswith(('.', '?')) else '.'} Also {second}"


def _path(error: ErrorDetails, tree: Node) -> Path:
    """The path of an error without the parts that pydantic adds, such as the branches of a union."""
    _, path = tree.descend(error["loc"])
    return (*path, error["loc"][-1]) if error["type"] == "missing" else path


def _line(error: ErrorDetails, same: Sequence[ErrorDetails], tree: Node, root: type[Config]) -> tuple[str, str]:
    path = _path(error, tree)
    node, _ = tree.descend(path)
    key, kind = dotted(path), error["type"]
    where = node.where
    if kind == "extra_forbidden":
        return where, f"unknown key '{key}'.{_suggest(path, tree, root)}"
    if kind == "missing":
        return where, f"the key '{key}' is missing{_example(path)}"
    if kind == "task":  # point at `task: null`, or else at the robot that needs a task
        task, found = tree.descend(("task",))
        robot, _ = tree.descend(("robot", "type"))
        return (task if found and task.value is None else robot).where, error["msg"]
    if kind == "plugin":
        place = node.value["type"].where if isinstance(node.value, dict) and "type" in node.value else where
        return place, f"'{key}.type': {error['msg']}"
    if kind == "plugin_type":
        plugin_kind = error["ctx"]["kind"]
        return where, (
            f"'{key}.type' should name a {plugin_kind}.{did_you_mean('', BUILTIN[plugin_kind])} For your own class, write "
            "package.module:Class"
        )
    got = _shown(node.plain())
    expected = [_EXPECTED[other["type"]] for other in same if other["type"] in _EXPECTED]
    if kind in _EXPECTED:
        return where, f"'{key}' should be {' or '.join(dict.fromkeys(expected))}, got {got}"
    if kind in ("literal_error", "enum"):
        hint = _nearest(node.value, error["ctx"]["expected"])
        return where, f"'{key}' should be {error['ctx']['expected']}, got {got}.{hint}".rstrip(".")
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not path or isinstance(node.value, dict):  # a check of several keys together
        return where, f"'{key}': {message}" if key else message
    return where, f"'{key}' {message[0].lower()}{message[1:]}, got {got}"


def _suggest(path: Path, tree: Node, root: type[Config]) -> str:
    name = str(path[-1])
    model = model_at(path[:-1], tree, root)
    if model is None:
        return ""
    if len(path) == 1:  # `seed=3` instead of `run.seed=3`
        elsewhere = [
            f"{section}.{name}"
            for section, field in settings(root).items()
            for nested in nested_models(field.annotation)
            if name in settings(nested)
        ]
        if elsewhere:
            return f" Did you mean '{elsewhere[0]}'?"
    if not model.model_fields:
        return f" '{dotted(path[:-1])}' has no settings"
    names = [*settings(model), "type"] if _is_section(path[:-1]) else list(settings(model))
    section = "".join(f"{part}." for part in path[:-1])
    return did_you_mean(name, names).replace("Did you mean '", f"Did you mean '{section}")


def _example(path: Path) -> str:
    kind = SECTION_KINDS.get(str(path[0])) if len(path) == 1 else None
    return f". Write for example '{path[0]}: {next(iter(BUILTIN[kind]))}'" if kind else ""


def _is_section(path: Path) -> bool:
    depth = 2 if path and path[0] in ("labels", *NAMED_SECTIONS) else 1
    return bool(path) and path[0] in SECTION_KINDS and len(path) == depth


def model_at(path: Path, tree: Node, root: type[Config]) -> type[Config] | None:
    """The model that reads the mapping at a path."""
    models: list[type[Config]] = [root]
    for depth, part in enumerate(path, start=1):
        if _is_section(path[:depth]):
            node, _ = tree.descend((*path[:depth], "type"))
            models = [settings_of(SECTION_KINDS[str(path[0])], str(node.value))]
        elif isinstance(part, str):
            fields = [settings(model)[part] for model in models if part in settings(model)]
            node, _ = tree.descend(path[:depth])
            annotations: list[object] = [field.annotation for field in fields]
            choosers = [annotation for annotation in annotations if isinstance(annotation, ChoosesModel)]
            chosen = [model for chooser in choosers if (model := chooser.model_of(node.plain()))]
            models = chosen or [nested for field in fields for nested in nested_models(field.annotation)] or models
    return models[0] if models else None


def _nearest(got: Any, expected: str) -> str:
    names = [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]
    hint = did_you_mean(got, names) if isinstance(got, str) else ""
    return hint if "Did you mean" in hint else ""


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(repr, list(value)[:3])) or 'no keys'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
