"""A JSON Schema (draft 2020-12) of config files, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from dovetail.config.plugins import KINDS, Plugin, list_plugins, settings_of
from dovetail.config.schema import DEFAULT_SECTIONS, KIND_MARK, SECTION_KINDS, RunConfig

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """The whole schema: a branch per known plugin, and an open branch for `module:Class`."""
    schema: dict[str, Any] = _filled_in(RunConfig.model_json_schema())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Dovetail config"
    schema["properties"]["base"] = {
        "type": "string",
        "description": "A recipe, or a file in the same folder. This file then has only the differences.",
    }
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["base"]}]
    schema["if"] = {"required": ["base"]}  # then a section may have only differences, without its type
    schema["then"], schema["else"] = _divided(schema["properties"])
    definitions = schema.setdefault("$defs", {})
    branches: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for plugin in list_plugins():
        branch, nested = _branch(plugin)
        definitions.update(nested)
        definitions[f"{plugin.kind}.{plugin.name}"] = branch
        branches[plugin.kind].append({"$ref": f"#/$defs/{plugin.kind}.{plugin.name}"})
    for kind, known in branches.items():
        definitions[kind] = {
            "description": f"A {kind} by name, or a mapping with its type and settings.",
            "oneOf": [{"type": "string"}, *known, _open_branch()],
        }
    return schema


def _divided(properties: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the plugin sections out of the properties; return them for files with and without a base."""
    sections = {name: properties.pop(name) for name in SECTION_KINDS if _names_plugin(properties[name])}
    inherited = {"type": "object", "not": {"required": ["type"]}}
    with_base = {name: {"anyOf": [section, inherited]} for name, section in sections.items()}
    properties.update(dict.fromkeys(sections, True))  # known names
    return {"properties": with_base}, {"properties": sections}


def _names_plugin(section: dict[str, Any]) -> bool:
    """Whether it is one plugin, not a list or mapping of them."""
    kinds = [f"#/$defs/{kind}" for kind in KINDS]
    return any(part.get("$ref") in kinds for part in (section, *section.get("anyOf", ())))


def _filled_in(schema: Any) -> Any:
    """Replace the marks of plugin sections by references."""
    if isinstance(schema, list):
        return [_filled_in(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if KIND_MARK in schema:
        rest = {key: value for key, value in schema.items() if key != KIND_MARK}
        return {"$ref": f"#/$defs/{schema[KIND_MARK]}", **rest}
    return {key: _filled_in(value) for key, value in schema.items()}


def _branch(plugin: Plugin) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of a section with this type, and the definitions that it refers to."""
    name = plugin.name
    spellings = list(dict.fromkeys([name, name.replace("_", "-"), name.replace("-", "_")]))
    type_key: dict[str, Any] = {"const": spellings[0]} if len(spellings) == 1 else {"enum": spellings}
    required = [] if plugin.name == _default_type(plugin.kind) else ["type"]
    if plugin.error is not None:  # not importable here: its settings are unknown
        return {"type": "object", "properties": {"type": type_key}, "required": ["type"]}, {}
    model = settings_of(plugin.kind, plugin.name)
    template = f"#/$defs/{plugin.kind}.{plugin.name}.{{model}}"
    schema = model.model_json_schema(ref_template=template)
    nested = {f"{plugin.kind}.{plugin.name}.{name}": part for name, part in schema.pop("$defs", {}).items()}
    schema.pop("title", None)
    if plugin.doc:
        schema.setdefault("description", plugin.doc)
    schema["properties"] = {"type": type_key, **schema.get("properties", {})}
    schema["required"] = [*required, *schema.get("required", [])]
    return schema, nested


def _default_type(kind: str) -> str | None:
    """The default type of a section, which a file may leave out."""
    for section, default in DEFAULT_SECTIONS.items():
        if SECTION_KINDS[section] == kind and isinstance(default, dict):
            return str(default["type"])
    return None


def _open_branch() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"type": "string", "pattern": "^[^:]+:[^:]+$"}},
        "required": ["type"],
    }
