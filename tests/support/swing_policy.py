"""A policy that swings an arm. It loads torch, so it has a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.gaussian_mlp import GaussianMLP, GaussianMLPConfig
from support.swing_arm import Swing


class SwingPolicyConfig(GaussianMLPConfig):
    """As the settings of the task."""

    kind: Literal["ee_delta", "joint_target"]
    """End effector deltas with a gripper, or joint targets."""
    fingers: str = "finger_pos"
    """Joint targets: the observation with grippers or fingers, which stay where they are."""
    step: float
    """Meters or rad per tick."""


class SwingPolicy(GaussianMLP):
    """Its network is trained but does not act."""

    Config: ClassVar[type[SwingPolicyConfig]] = SwingPolicyConfig

    def __init__(self, config: SwingPolicyConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        super().__init__(config, robot=robot, seed=seed)
        self._swing = Swing(kind=config.kind, fingers=config.fingers, step=config.step)

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        chunk = super().act(observations, context)  # of one robot
        values = {key: value[0] for key, value in observations.items()}
        return replace(chunk, actions=self._swing.actions(values, self.spec.horizon)[None])
