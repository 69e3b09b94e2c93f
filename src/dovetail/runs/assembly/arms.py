"""The arms of a run, by name: what each of them does, and which of them do the same.

Arms that do the same (one task, one make, one operator) are of one kind: they share demonstrations and evaluations.
"""

from __future__ import annotations

from dovetail.config.load import robot_config
from dovetail.config.schema import RunConfig

__all__ = ["arm_configs", "arm_name", "config_of", "arm_groups"]


def arm_configs(config: RunConfig) -> dict[str, RunConfig]:
    """The run as each of its arms sees it."""
    return {name: robot_config(config, name, place) for name, place in config.cluster.named_robots().items()}


def arm_name(config: RunConfig, name: str) -> str | None:
    """What an arm is called in what it records; one that is alone goes by its make, as it always did."""
    return name if config.cluster.robots or config.cluster.num_robots > 1 else None


def config_of(config: RunConfig, robot: str) -> RunConfig:
    """The run as the arm sees it that recorded under this name."""
    place = config.cluster.robots.get(robot)
    return robot_config(config, robot, place) if place else config


def arm_groups(config: RunConfig) -> list[tuple[str, ...]]:
    """Names of arms, those together that do the same."""
    alike: dict[str, list[str]] = {}
    for name, own in arm_configs(config).items():
        plain = own.model_dump(mode="json", include={"task", "robot", "operator"})
        alike.setdefault(repr(plain), []).append(name)
    return [tuple(names) for names in alike.values()]
