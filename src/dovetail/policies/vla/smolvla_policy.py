"""SmolVLA as a policy: published weights act on a robot, with real-time chunking."""

from __future__ import annotations

from typing import ClassVar

from dovetail.policies.vla.families.smolvla import SMOLVLA
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.settings import SmolVLAConfig

__all__ = ["SmolVLAConfig", "SmolVLAPolicy"]


class SmolVLAPolicy(VlaPolicy):
    Config = SmolVLAConfig
    family: ClassVar[Family] = SMOLVLA
