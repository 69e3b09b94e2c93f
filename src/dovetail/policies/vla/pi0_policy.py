"""pi0 as a policy: published weights act on a robot, with real-time chunking."""

from __future__ import annotations

from typing import ClassVar

from dovetail.policies.vla.families.pi0 import PI0
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.settings import Pi0Config

__all__ = ["Pi0Config", "Pi0Policy"]


class Pi0Policy(VlaPolicy):
    Config = Pi0Config
    family: ClassVar[Family] = PI0
