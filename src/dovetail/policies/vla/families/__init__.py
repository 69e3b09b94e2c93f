"""The published models that act here, by the name of their policy."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.family import Family

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Family] = {family.name: family for family in (PI0,)}
