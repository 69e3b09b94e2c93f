"""The published models that act here, by the name of their policy."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.families.pi05 import PI05
from dovetail.policies.vla.families.smolvla import SMOLVLA
from dovetail.policies.vla.family import Family

__all__ = ["FAMILIES"]

# smolvla first: folders are recognized in this order, and its weights have names that pi0's have too
FAMILIES: Mapping[str, Family] = {family.name: family for family in (SMOLVLA, PI0, PI05)}
