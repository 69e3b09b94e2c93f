"""Abilities of actors."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["HasMode"]


@runtime_checkable
class HasMode(Protocol):
    """An actor with a `dovetail.actor.modes.Mode`: how it goes from chunk to chunk. Class attribute."""

    mode: Any
