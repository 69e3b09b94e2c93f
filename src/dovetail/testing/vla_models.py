"""Conformance suite for models of policy 'vla'."""

from __future__ import annotations

from typing import Any

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.policies.vla.settings import UserModelConfig

__all__ = ["check_vla_model"]

_ARM = RobotSpec(
    name="conformance_arm",
    embodiment="conformance_arm",
    observation={
        "joint_pos": ArraySpec(shape=(7,)),
        "gripper": ArraySpec(shape=(1,)),
        "front": ArraySpec(shape=(64, 64, 3), dtype="uint8"),
    },
    action=ArraySpec(shape=(7,), low=(-1.0,) * 7, high=(1.0,) * 7),
    action_kind="joint_target",
    control_hz=10.0,
)


def check_vla_model(
    model_class: type | str, *, robot: RobotSpec = _ARM, seed: int = 0, **settings: Any
) -> frozenset[str]:
    """Build policy 'vla' with this class, act, and try everything that its methods allow.

    `settings` are the other settings of the policy: `model_config`, `inputs`, `horizon` and so on. Without `inputs`, the
    model gets all observations of the robot. Returns what it can do: `act`, `imitate` and `ppo`.
    """
    from dovetail.testing._vla_checks import check_model  # loads torch

    name = model_class if isinstance(model_class, str) else f"{model_class.__module__}:{model_class.__qualname__}"
    config = UserModelConfig.from_mapping({"inputs": list(robot.observation), **settings, "model_class": name})
    return check_model(config, robot=robot, seed=seed)
