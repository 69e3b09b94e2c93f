"""The base class of every config model, and the translation of keys that older versions used.

A plugin is a class with a `Config` attribute (its model, defined in the same file). Its constructor takes the config
first and these handles by keyword:

    kind        handles
    task        -
    robot       task
    camera      name (its key in the section `cameras`)
    operator    task, robot (a RobotSpec)
    policy      robot (a RobotSpec), seed
    labeler     -
    replay      folder, keys (the observations to store)
    actor       robot, task, operator, policy, clock, recorder, probe, should_stop; optionally board and health_check
    algorithm   policy, seed

Constructors do no I/O. `type` names the plugin and is removed before the other keys are validated.
"""

from __future__ import annotations

import typing
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from dovetail.config._tree import Node, Path, dotted, from_plain
from dovetail.core.errors import ConfigError, ConfigWarning

__all__ = ["ChoosesModel", "Config", "OldKeys", "nested_models", "old_keys", "settings", "translate"]


class Config(BaseModel):
    """A frozen model that refuses unknown keys and wrong types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,  # an alias is the name of a setting that is no valid name of an attribute
    )

    BASIC: ClassVar[Collection[str]] = ()
    """Settings that most users change; `dovetail config show` prints only these. The others are expert settings."""
    CHANGEABLE: ClassVar[Collection[str]] = ()
    """Settings that `dovetail run --resume` accepts: what was recorded and learned stays valid with any value."""
    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Old key -> new key. The old key still works, with a warning."""
    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Old key -> what to do instead. The key is ignored, with a warning."""

    BEFORE: ClassVar[Mapping[str, Any]] = {}
    """Setting -> its value in run folders from before it existed, where the default would change what the run does."""

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Validate plain data, strictly as JSON: a list may stand for a tuple, but "5" never for 5."""
        return cls.model_validate_json(to_json(_translated(cls, data)), strict=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        return super().model_validate(_translated(cls, obj) if isinstance(obj, dict) else obj, **options)


@runtime_checkable
class ChoosesModel(Protocol):
    """The annotation of a field whose data decides which model reads it, such as a policy inside a policy."""

    @staticmethod
    def model_of(data: Any) -> type[Config] | None: ...


@dataclass(slots=True)
class OldKeys:
    """The old keys found in a config, each with the text of its warning."""

    renamed: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)

    def rename(self, old: Path, new: Path) -> None:
        self.renamed[dotted(old)] = f"'{dotted(old)}' is now '{dotted(new)}'"

    def remove(self, old: Path, advice: str) -> None:
        self.removed[dotted(old)] = f"'{dotted(old)}' is no longer a setting and is ignored: {advice}"

    def warn(self) -> None:
        for message in (*self.renamed.values(), *self.removed.values()):
            warnings.warn(message, ConfigWarning, stacklevel=3)

    def __str__(self) -> str:
        """The counts, such as `3 settings renamed, 1 removed`."""
        kinds = [(len(self.renamed), "renamed"), (len(self.removed), "removed")]
        counts = [f"{count} {what}" for count, what in kinds if count]
        noun = " setting " if counts and counts[0].startswith("1 ") else " settings "
        return ", ".join(counts).replace(" ", noun, 1)


def translate(model: type[Config], node: Node, found: OldKeys, path: Path = ()) -> Node:
    """Replace the old keys of a mapping that `model` reads, and of the mappings inside it."""
    if not isinstance(node.value, dict):
        return node
    renamed, removed = old_keys(model)
    given: dict[str, Node] = {}
    for key, child in node.value.items():
        new = str(renamed.get(key, key))
        if key in removed:
            found.remove((*path, key), removed[key])
            continue
        if new != key:
            if new in node.value:
                old_key, new_key = dotted((*path, key)), dotted((*path, new))
                raise ConfigError(f"{child.where}: '{old_key}' is now '{new_key}': remove the old key")
            found.rename((*path, key), (*path, new))
        if new in (fields := settings(model)):
            child = _translate_field(fields[new].annotation, child, found, (*path, new))
        given[new] = child
    return Node(given, node.where)


def _translate_field(annotation: Any, node: Node, found: OldKeys, path: Path) -> Node:
    chosen = annotation.model_of(node.plain()) if isinstance(annotation, ChoosesModel) else None
    models = [chosen] if chosen else list(nested_models(annotation))
    if not models:
        return node
    if isinstance(node.value, list):
        items = [translate(models[0], item, found, (*path, index)) for index, item in enumerate(node.value)]
        return Node(items, node.where)
    origins = [typing.get_origin(one) for one in (annotation, *typing.get_args(annotation))]
    if isinstance(node.value, dict) and dict in origins:
        named = {key: translate(models[0], item, found, (*path, key)) for key, item in node.value.items()}
        return Node(named, node.where)
    return translate(models[0], node, found, path)


def settings(model: type[Config]) -> dict[str, FieldInfo]:
    """The fields of a model by the names that they have in a config."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def nested_models(annotation: Any) -> Iterator[type[Config]]:
    """The config models inside an annotation, through unions, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for argument in typing.get_args(annotation):
        if isinstance(argument, type) or typing.get_args(argument):
            yield from nested_models(argument)


def old_keys(model: type[Config]) -> tuple[dict[str, str], dict[str, str]]:
    """The old keys of a model and of the models that it inherits from."""
    models = [base for base in reversed(model.__mro__) if issubclass(base, Config)]
    renamed = {old: new for base in models for old, new in base.RENAMED.items()}
    removed = {old: advice for base in models for old, advice in base.REMOVED.items()}
    return renamed, removed


def _translated(model: type[Config], data: Mapping[str, Any]) -> Any:
    found = OldKeys()
    plain = translate(model, from_plain(dict(data), "config"), found).plain()
    found.warn()
    return plain
