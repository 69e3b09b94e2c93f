"""The arms of a run by name. Arms with the same task, robot, cameras and operator form a group that shares demonstrations
and evaluations."""

from __future__ import annotations

from dovetail.config.load import robot_config
from dovetail.config.schema import RunConfig

__all__ = ["arm_configs", "arm_groups", "arm_name", "config_of", "has_operator"]


def arm_configs(config: RunConfig) -> dict[str, RunConfig]:
    """The config of each arm."""
    return {name: robot_config(config, name, place) for name, place in config.cluster.named_robots().items()}


def has_operator(config: RunConfig) -> bool:
    """Whether any arm has an operator, who demonstrates or helps."""
    return any(own.operator.type != "none" for own in arm_configs(config).values())


def arm_name(config: RunConfig, name: str) -> str | None:
    """The robot name in an arm's episodes; None if it is alone: then the robot's own name is used."""
    return name if config.cluster.robots or config.cluster.num_robots > 1 else None


def config_of(config: RunConfig, robot: str) -> RunConfig:
    """The config of the arm with this robot name."""
    place = config.cluster.robots.get(robot)
    return robot_config(config, robot, place) if place else config


def arm_groups(config: RunConfig) -> list[tuple[str, ...]]:
    """Names of arms, grouped."""
    groups: dict[str, list[str]] = {}
    for name, own in arm_configs(config).items():
        plain = own.model_dump(mode="json", include={"task", "robot", "cameras", "operator"})
        groups.setdefault(repr(plain), []).append(name)
    return [tuple(names) for names in groups.values()]
