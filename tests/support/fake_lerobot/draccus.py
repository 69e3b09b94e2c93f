"""A miniature of draccus: a registry of config classes, and decoding of plain data into them."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


class ChoiceRegistry:
    _registry: dict[str, type]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if ChoiceRegistry in cls.__bases__:
            cls._registry = {}

    @classmethod
    def register_subclass(cls, name: str) -> Any:
        def register(subclass: type) -> type:
            cls._registry[name] = subclass
            return subclass

        return register

    @classmethod
    def get_known_choices(cls) -> dict[str, type]:
        return dict(cls._registry)

    @classmethod
    def get_choice_name(cls, subclass: type) -> str:
        return next(name for name, known in cls._registry.items() if known is subclass)


class DecodingError(Exception):
    pass


def decode(cls: Any, raw: Any) -> Any:
    if isinstance(cls, type) and issubclass(cls, ChoiceRegistry) and isinstance(raw, dict) and "type" in raw:
        raw = dict(raw)
        cls = cls.get_known_choices()[raw.pop("type")]
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        if unknown := set(raw) - {field.name for field in dataclasses.fields(cls)}:
            raise DecodingError(f"The fields {sorted(unknown)} are not valid for {cls.__name__}")
        try:
            return cls(**{name: decode(hints[name], value) for name, value in raw.items()})
        except TypeError as error:
            raise DecodingError(str(error)) from error
    if typing.get_origin(cls) is dict:
        return {key: decode(typing.get_args(cls)[1], value) for key, value in raw.items()}
    return raw
