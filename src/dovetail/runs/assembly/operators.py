"""What follows from the section of an operator, before it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from dovetail.config.plugins import resolve
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import (
    ConfiguresLeader,
    ConfiguresSpeed,
    DrivenFromConsole,
    WrapsOperator,
    WrapsOperators,
)
from dovetail.core.errors import ConfigError, UsageError
from dovetail.human.drive_settings import DriveConfig

__all__ = ["all_operators", "console_config", "console_operator", "drives_part", "inner_operators", "parse_inner"]


def inner_operators(section: PluginSection) -> list[PluginSection]:
    """The operators that an operator's config names."""
    config = section.config
    if isinstance(config, WrapsOperators):
        return [
            parse_inner("operator", one, f"operator.operators.{at}") for at, one in enumerate(config.operators)
        ]
    if isinstance(config, WrapsOperator) and config.operator is not None:
        return [parse_inner("operator", config.operator, "operator.operator")]
    return []


def parse_inner(kind: str, data: Any, path: str) -> PluginSection:
    """A section inside a section. Raises ConfigError in one line."""
    try:
        return PluginSection.parse(kind, data)
    except PydanticCustomError as error:
        raise ConfigError(f"{path}: {error.message()}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join((path, *map(str, first["loc"])))
        raise ConfigError(f"{where}: {' '.join(first['msg'].split())}") from error


def all_operators(section: PluginSection) -> Iterator[PluginSection]:
    """An operator and all inside it."""
    yield section
    for one in inner_operators(section):
        yield from all_operators(one)


def drives_part(section: PluginSection) -> bool:
    """Whether a person may drive only some axes of the robot."""
    return any(
        (isinstance(one.config, DriveConfig) and one.config.part is not None)
        or isinstance(one.config, WrapsOperators | ConfiguresLeader)
        for one in all_operators(section)
    )


def console_operator(section: PluginSection) -> PluginSection | None:
    """The operator whose person is at the console or the terminal: the given one, or one of several."""
    members = inner_operators(section) if isinstance(section.config, WrapsOperators) else []
    found = [one for one in (section, *members) if _is_at_console(one)]
    if len(found) > 1:
        raise UsageError(
            f"operator 'several': {' and '.join(one.type for one in found)} cannot drive one robot together. Use only one"
        )
    return found[0] if found else None


def _is_at_console(section: PluginSection) -> bool:
    kind = resolve("operator", section.type)
    return section.type == "keyboard" or (isinstance(kind, DrivenFromConsole) and kind.driven_from_console)


def console_config(section: PluginSection) -> DriveConfig:
    """What the console drives: with all known geometry, and only one part if its own operator is restricted to it."""
    configs = [one.config for one in all_operators(section) if isinstance(one.config, DriveConfig)]
    own = console_operator(section)
    config = (own or section).config
    return DriveConfig(
        speed=config.speed if isinstance(config, ConfiguresSpeed) else 1.0,
        part=config.part if own is not None and isinstance(config, DriveConfig) else None,
        kinematics=tuple({one.part: one for config in configs for one in config.known_arms}.values()),
    )
