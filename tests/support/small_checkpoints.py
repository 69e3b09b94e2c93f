"""Small checkpoints in published layouts, one per policy type, for tests that every such policy must pass.

All act on one scene: camera `front`, a state of 9 axes (`joint_pos`, `gripper`) and 6 action axes, as `push_cube` has them
on the simulated arm, and `SixAxisLiveArm` in real time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.specs import ArraySpec
from dovetail.testing.live import LiveArm
from support.pi0_folders import write_lerobot

__all__ = ["SMALL_CHECKPOINTS", "SixAxisLiveArm"]


def _pi0(folder: Path) -> dict[str, Any]:
    return {
        "type": "pi0",
        "checkpoint": str(write_lerobot(folder)),
        "images": {"base_0_rgb": "front"},
        "state": ["joint_pos", "gripper"],
        "device": "cpu",
    }


SMALL_CHECKPOINTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "pi0": _pi0,
}
"""Policy type: writes its checkpoint to a folder and returns the section `policy` of a config."""


class SixAxisLiveArm(LiveArm):
    """The fake arm on the real clock with the axes of the small checkpoints."""

    def __init__(self, config, *, task=None):
        super().__init__(config, task=task)
        action = self._spec.action
        observation = {
            **self._spec.observation,
            "joint_pos": ArraySpec(shape=(7,)),
            "gripper": ArraySpec(shape=(2,)),
        }
        six = replace(action, shape=(6,), names=action.names[:6], low=action.low[:6], high=action.high[:6])
        self._spec = replace(self._spec, observation=observation, action=six, parts=())

    def observe(self):
        seen = super().observe()
        values = {
            **seen.values,
            "joint_pos": seen.values["ee_pose"],
            "gripper": np.repeat(seen.values["gripper"], 2),
        }
        return replace(seen, values=values)

    def send(self, action):
        return super().send(np.append(action, np.float32(1.0)))[:6]
