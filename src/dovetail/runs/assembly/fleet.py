"""All arms of a run as one learner sees them.

Arms whose observations or actions differ need a policy that knows them apart, `shared`; then each has a replay of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config.schema import RunConfig
from dovetail.core.achieved import gripper_axes
from dovetail.core.contracts import Algorithm, Replay
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec, match
from dovetail.core.types import Array, Episode
from dovetail.policies.embodiments.canonical_space import EMBODIMENT, CanonicalSpace, EmbodimentConfig
from dovetail.policies.embodiments.shared_policy import SharedConfig
from dovetail.core.abilities import CachesFeatures
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.features import encoded_robot
from dovetail.runs.assembly.arm_replays import ArmReplays
from dovetail.runs.assembly.arms import arm_configs, arm_name, arm_groups
from dovetail.runs.assembly.build import Assembly, build_assembly

__all__ = ["Fleet", "build_fleet", "check_equal", "completed"]


def completed(config: RunConfig) -> RunConfig:
    """With the arms that a shared policy is for, where the config leaves them to us."""
    policy = config.policy.config
    if not isinstance(policy, SharedConfig) or policy.embodiments:
        return config
    made = [(names, _specs(config, names)) for names in arm_groups(config)]
    bodies = Counter(specs[names[0]].embodiment for names, specs in made)
    rows: dict[str, RobotSpec] = {}
    for names, specs in made:  # by its body, where that says who is meant
        body = specs[names[0]].embodiment
        rows |= {body: specs[names[0]]} if bodies[body] == 1 else specs
    wanted = policy.policy.config.inputs
    embodiments = _embodiments(rows, wanted)
    section = replace(config.policy, config=policy.model_copy(update={"embodiments": embodiments}))
    return config.model_copy(update={"policy": section})


def _embodiments(rows: Mapping[str, RobotSpec], wanted: tuple[str, ...]) -> dict[str, EmbodimentConfig]:
    """Axes of one name are one axis."""
    named = all(robot.action.names for robot in rows.values())
    axes = list(dict.fromkeys(name for robot in rows.values() for name in robot.action.names))
    return {
        row: EmbodimentConfig(
            observation={
                key: spec.shape[0]
                for key, spec in robot.observation.items()
                if len(spec.shape) == 1 and spec.dtype == "float32" and (not wanted or key in wanted)
            },
            num_actions=robot.action.shape[0],
            axes=tuple(axes.index(name) for name in robot.action.names) if named else (),
            grippers=tuple(map(int, np.flatnonzero(gripper_axes(robot.action, robot.action_kind)))),
        )
        for row, robot in rows.items()
    }


def _specs(config: RunConfig, names: tuple[str, ...]) -> dict[str, RobotSpec]:
    """What arms of one kind say of themselves."""
    station = build_assembly(arm_configs(config)[names[0]])
    spec = station.robot.spec
    station.close()
    return {name: replace(spec, name=arm_name(config, name) or spec.name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All arms of a run, for whoever keeps and learns from what they do."""

    station: Assembly  # the first one's
    robots: Mapping[str, RobotSpec]

    def trainable(self) -> TrainablePolicy:
        """A new policy for all of them."""
        policy = self.station.trainable()
        canonical_space = _canonical_space(policy)
        if canonical_space is None:
            check_equal(self.robots)
            return policy
        if self.station.config.learner.ranks > 1:
            raise UsageError(
                "learner.ranks is for arms of one body, that is for policies other than shared: set it to 1"
            )
        rows = {canonical_space.arm(robot).name for robot in self.robots.values()}
        if len(rows) == 1:
            return policy
        canonical: TrainablePolicy = policy.canonical  # type: ignore[attr-defined]
        return canonical

    def algorithm(self, policy: TrainablePolicy) -> Algorithm:
        return self.station.algorithm(policy)

    def robot(self, policy: TrainablePolicy) -> RobotSpec:
        """What batches are like."""
        if _is_mixed(policy):
            whole: RobotSpec = policy.robot  # type: ignore[attr-defined]
            return whole
        robot = self.station.robot.spec
        return (
            encoded_robot(robot, policy.feature_specs) if isinstance(policy, CachesFeatures) and policy.feature_specs else robot
        )

    def replay(self, folder: Path, policy: TrainablePolicy) -> Replay:
        """One, or one for each that the policy knows apart."""
        if not _is_mixed(policy):
            return self.station.replay(folder, keys=tuple(policy.spec.observation))
        canonical_space: CanonicalSpace = policy.canonical_space  # type: ignore[attr-defined]
        replays: dict[str, tuple[RobotSpec, Replay]] = {}
        cameras = [key for key in policy.spec.observation if key not in canonical_space.sizes and key != EMBODIMENT]
        for robot in self.robots.values():
            arm = canonical_space.arm(robot)
            if arm.name not in replays:
                keys = (*arm.keys.values(), *cameras)
                replays[arm.name] = (robot, self.station.replay(folder / arm.name, keys=keys))
        return ArmReplays(canonical_space, replays)

    def seen(self, policy: TrainablePolicy) -> Callable[[Episode], dict[str, Array]]:
        """What normalisation is fitted to, of an episode."""
        if not _is_mixed(policy):
            keys = [key for key, spec in policy.spec.observation.items() if len(spec.shape) < 3]
            return lambda episode: {key: episode.column(f"observation/{key}") for key in keys}
        canonical_space: CanonicalSpace = policy.canonical_space  # type: ignore[attr-defined]
        return lambda episode: _padded(canonical_space, episode)

    def close(self) -> None:
        self.station.close()


def check_equal(robots: Mapping[str, RobotSpec]) -> None:
    """Refuse arms that no policy but a shared one could serve."""
    (first, ours), *others = robots.items()
    for name, theirs in others:
        if replace(theirs, name=ours.name).hash() == ours.hash():
            continue
        try:
            match(replace(theirs, name=name), stored=replace(ours, name=first))
            why = f"{ours.embodiment} at {ours.control_hz:g} Hz, {theirs.embodiment} at {theirs.control_hz:g} Hz"
        except SpecMismatch as problem:
            why = str(problem)
        raise UsageError(
            f"robots '{first}' and '{name}' differ ({why}): for both, set policy.type=shared, and this policy as "
            "policy.policy"
        )


def build_fleet(config: RunConfig, *, parts: Path | None = None) -> Fleet:
    """Everybody is made once, to say what it is; only the first is kept."""
    robots: dict[str, RobotSpec] = {}
    for names in arm_groups(config):
        robots |= _specs(config, names)
    first = next(iter(config.cluster.named_robots()))
    station = build_assembly(arm_configs(config)[first], parts=parts, name=arm_name(config, first))
    return Fleet(station=station, robots={name: robots[name] for name in config.cluster.named_robots()})


def _canonical_space(policy: Any) -> CanonicalSpace | None:
    canonical = getattr(policy, "canonical", None)
    return None if canonical is None else canonical.canonical_space


def _is_mixed(policy: Any) -> bool:
    return hasattr(policy, "canonical_space")


def _padded(canonical_space: CanonicalSpace, episode: Episode) -> dict[str, Array]:
    arm = canonical_space.arm(episode.robot)
    wide = {key: arm.wide(key, episode.column(f"observation/{own}")) for key, own in arm.keys.items()}
    for key, size in canonical_space.sizes.items():
        wide.setdefault(key, np.zeros((len(episode), size), np.float32))
    return {**wide, EMBODIMENT: np.tile(arm.one_hot, (len(episode), 1))}
