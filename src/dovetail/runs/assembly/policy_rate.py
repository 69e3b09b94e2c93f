"""The rate of a run's policy, which may be lower than the robot's (`actor.policy_hz`)."""

from __future__ import annotations

from dovetail.actor.actors import ActorConfig, policy_ticks
from dovetail.config.plugins import resolve
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import LearnsOnPolicy
from dovetail.core.errors import UsageError
from dovetail.core.images import seen_robot
from dovetail.core.policy_rate import at_policy_rate
from dovetail.core.specs import RobotSpec
from dovetail.core.types import TicksPerStep
from dovetail.runs.assembly.seen_images import image_scaling, image_size

__all__ = ["policy_robot", "refuse_other_rate", "ticks_of_step"]


def ticks_of_step(config: RunConfig, robot: RobotSpec) -> TicksPerStep:
    """Control ticks of one step of the policy. Raises an error for rates that do not fit."""
    actor = config.actor.config
    ticks = policy_ticks(actor, control_hz=robot.control_hz) if isinstance(actor, ActorConfig) else 1
    if ticks > 1 and config.policy.type == "shared":
        raise UsageError("policy 'shared' acts at the rate of each robot. Set actor.policy_hz=null")
    if ticks > 1 and isinstance(resolve("algorithm", config.algorithm.type), LearnsOnPolicy):
        raise UsageError("on-policy learning acts at the rate of its world. Set actor.policy_hz=null")
    return ticks


def policy_robot(config: RunConfig, robot: RobotSpec) -> RobotSpec:
    """The robot as its policy sees it: at the policy's rate, with larger images scaled down."""
    seen = seen_robot(robot, image_size(config), image_scaling(config))
    return at_policy_rate(seen, ticks_of_step(config, robot))


def refuse_other_rate(trained: RunConfig, config: RunConfig) -> None:
    """Raise UsageError if weights would act at another rate than they were trained for."""
    was, now = (
        one.actor.config.policy_hz if isinstance(one.actor.config, ActorConfig) else None
        for one in (trained, config)
    )
    if was != now:
        text = "null" if was is None else f"{was:g}"
        raise UsageError(
            f"these weights were trained with actor.policy_hz={text}. Add it to the settings of the actor"
        )
