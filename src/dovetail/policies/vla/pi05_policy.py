"""pi0.5 as a policy: published weights act on a robot, with real-time chunking."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.policies.vla.families.pi05 import PI05
from dovetail.policies.vla.family import Family
from dovetail.policies.vla.policy import VlaPolicy
from dovetail.policies.vla.settings import Pi05Config

__all__ = ["Pi05Config", "Pi05Policy"]


class Pi05Policy(VlaPolicy):
    Config = Pi05Config
    family: ClassVar[Family] = PI05

    def __init__(self, config: Pi05Config, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._num_prompt_states = config.num_prompt_states

    def _prompt(self, task: str, state: Array) -> str:
        num = self._num_prompt_states
        if num is not None:
            if num < len(state):
                raise SpecMismatch(
                    f"policy.num_prompt_states={num}, but the state has {len(state)} values. Set 32 or null"
                )
            state = np.pad(state, (0, num - len(state)))
        return super()._prompt(task, state)
