"""A config as YAML, with a comment for each setting: what `dovetail config show` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.config import _yaml
from dovetail.config.model import Config
from dovetail.config.schema import PluginSection, RunConfig

__all__ = ["basic_keys", "describe"]

_COMMENT_COLUMN = 40
_MAX_CHARS = 110  # of a description


def describe(config: RunConfig, *, all_settings: bool = False) -> str:
    """The basic settings, or all of them, each with its description. Valid as a config file."""
    return "".join(f"{line}\n" for line in _model(config, all_settings=all_settings, indent=""))


def basic_keys(model: type[Config]) -> set[str]:
    """The basic settings of a model and of the models that it inherits from."""
    return {key for base in model.__mro__ if issubclass(base, Config) for key in base.BASIC}


def _model(config: Config, *, all_settings: bool, indent: str) -> Iterator[str]:
    basic = basic_keys(type(config))
    plain = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        key, value, about = field.alias or name, getattr(config, name), _summary(field.description)
        if isinstance(value, PluginSection):
            inner = list(_section(value, all_settings=all_settings, indent=indent + "  "))
        elif isinstance(value, list) and value and isinstance(value[0], PluginSection):
            inner = [line for one in value for line in _item(one, all_settings=all_settings, indent=indent + "  ")]
        elif isinstance(value, dict) and value and isinstance(next(iter(value.values())), PluginSection):
            inner = [
                line
                for name, one in value.items()
                for line in (
                    f"{indent}  {name}:",
                    *_section(one, all_settings=all_settings, indent=indent + "    "),
                )
            ]
        elif isinstance(value, Config) and (all_settings or key not in basic):
            inner = list(_model(value, all_settings=all_settings, indent=indent + "  "))
        elif all_settings or key in basic:
            yield _line(indent, key, plain[key], about)
            continue
        else:
            continue
        if inner:
            yield f"{indent}{key}:"
            yield from inner


def _section(section: PluginSection, *, all_settings: bool, indent: str) -> Iterator[str]:
    yield f"{indent}type: {_value(section.type)}"
    yield from _model(section.config, all_settings=all_settings, indent=indent)


def _item(section: PluginSection, *, all_settings: bool, indent: str) -> list[str]:
    first, *rest = _section(section, all_settings=all_settings, indent=indent + "  ")
    return [f"{indent}- {first.lstrip()}", *rest]


def _line(indent: str, key: str, value: Any, about: str) -> str:
    setting = f"{indent}{key}: {_value(value)}"
    return f"{setting:<{_COMMENT_COLUMN}}  # {about}" if about else setting


def _value(value: Any) -> str:
    return _yaml.dump_inline(value)


def _summary(text: str | None) -> str:
    """As many sentences of a description as fit in a line, but at least one."""
    first, *others = " ".join((text or "").split()).split(". ")
    for sentence in others:
        if len(first) + len(sentence) > _MAX_CHARS:
            break
        first = f"{first}. {sentence}"
    return first.rstrip(".")
