"""Abilities of any plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

__all__ = ["Closes", "HasName", "HasVersion", "NeedsPackages"]


@runtime_checkable
class Closes(Protocol):
    """Holds a device, file or simulator that must be closed."""

    def close(self) -> None: ...


@runtime_checkable
class HasVersion(Protocol):
    """A labeler whose labels carry the version of its settings and weights."""

    version: str


@runtime_checkable
class HasName(Protocol):
    """A labeler whose labels carry another name than its plugin's."""

    name: str


@runtime_checkable
class NeedsPackages(Protocol):
    """A plugin that imports other packages at its first use: {module: name for pip}. Class attribute."""

    packages: Mapping[str, str]
