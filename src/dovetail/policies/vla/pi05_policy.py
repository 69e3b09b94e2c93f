"""pi0.5 as a policy: published weights act on a robot, with real-time chunking."""

from __future__ import annotations

from typing import ClassVar

from dovetail.policies.vla.families.pi05 import PI05
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.settings import Pi05Config

__all__ = ["Pi05Config", "Pi05Policy"]


class Pi05Policy(VlaPolicy):
    Config = Pi05Config
    family: ClassVar[Family] = PI05
