"""All arms of a run. Arms with different observations or actions need a `shared` policy and a replay for each embodiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from dovetail.config.schema import RunConfig
from dovetail.core.abilities import CachesFeatures, FitsActions, HasCanonicalSpace, WrapsCanonicalPolicy
from dovetail.core.contracts import Algorithm, Replay
from dovetail.core.errors import SpecMismatch, UsageError
from dovetail.core.specs import RobotSpec, match
from dovetail.core.types import Array, Episode
from dovetail.policies.embodiments.canonical_space import EMBODIMENT, CanonicalSpace, EmbodimentConfig
from dovetail.policies.embodiments.shared_policy import SharedConfig
from dovetail.policies.trainable import TrainablePolicy
from dovetail.runs.assembly.arm_replays import ArmReplays
from dovetail.runs.assembly.arms import arm_configs, arm_groups, arm_name
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.assembly.features import encoded_robot

__all__ = ["Fleet", "build_fleet", "check_equal", "with_embodiments"]


def with_embodiments(config: RunConfig) -> RunConfig:
    """The config with the embodiments of a shared policy filled in."""
    policy = config.policy.config
    if not isinstance(policy, SharedConfig) or policy.embodiments:
        return config
    made = [(names, _specs(config, names)) for names in arm_groups(config)]
    bodies = Counter(specs[names[0]].embodiment for names, specs in made)
    rows: dict[str, RobotSpec] = {}
    for names, specs in made:  # named by its embodiment if that is unique, otherwise by its arm
        body = specs[names[0]].embodiment
        rows |= {body: specs[names[0]]} if bodies[body] == 1 else specs
    inputs = policy.policy.config.inputs
    embodiments = _embodiments(rows, inputs)
    section = replace(config.policy, config=policy.model_copy(update={"embodiments": embodiments}))
    return config.model_copy(update={"policy": section})


def _embodiments(rows: Mapping[str, RobotSpec], inputs: tuple[str, ...]) -> dict[str, EmbodimentConfig]:
    """Axes with the same name share one axis of the canonical action space."""
    named = all(robot.action.names for robot in rows.values())
    axes = list(dict.fromkeys(name for robot in rows.values() for name in robot.action.names))
    return {
        row: EmbodimentConfig(
            observation={
                key: spec.shape[0]
                for key, spec in robot.observation.items()
                if len(spec.shape) == 1 and spec.dtype == "float32" and (not inputs or key in inputs)
            },
            num_actions=robot.action.shape[0],
            axes=tuple(axes.index(name) for name in robot.action.names) if named else (),
            grippers=tuple(map(int, np.flatnonzero(robot.axes_of("gripper")))),
        )
        for row, robot in rows.items()
    }


def _specs(config: RunConfig, names: tuple[str, ...]) -> dict[str, RobotSpec]:
    """Specs of the arms of one group."""
    assembly = build_assembly(arm_configs(config)[names[0]])
    spec = assembly.robot.spec
    assembly.close()
    return {name: replace(spec, name=arm_name(config, name) or spec.name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All arms of a run, as the store and the learner use them."""

    assembly: Assembly  # of the first arm
    robots: Mapping[str, RobotSpec]

    def trainable(self) -> TrainablePolicy:
        """A new policy for all arms."""
        policy = self.assembly.trainable()
        if not isinstance(policy, WrapsCanonicalPolicy):
            check_equal(self.robots)
            return policy
        canonical_space: CanonicalSpace = policy.canonical.canonical_space
        if len({canonical_space.arm(robot).name for robot in self.robots.values()}) == 1:
            return policy
        if self.assembly.config.learner.ranks > 1:
            raise UsageError("learner.ranks > 1 needs arms of one embodiment. Set learner.ranks=1")
        return cast(TrainablePolicy, policy.canonical)

    def algorithm(self, policy: TrainablePolicy) -> Algorithm:
        return self.assembly.algorithm(policy)

    def robot(self, policy: TrainablePolicy) -> RobotSpec:
        """The spec of the rows in a batch."""
        if isinstance(policy, HasCanonicalSpace):
            return policy.robot
        robot = self.assembly.policy_robot
        return encoded_robot(robot, policy.feature_specs) if isinstance(policy, CachesFeatures) else robot

    def replay(self, folder: Path, policy: TrainablePolicy) -> Replay:
        """One replay, or one for each embodiment of a shared policy."""
        if not isinstance(policy, HasCanonicalSpace):
            return self.assembly.replay(folder, keys=policy.spec.learned_keys)
        canonical_space: CanonicalSpace = policy.canonical_space
        replays: dict[str, tuple[RobotSpec, Replay]] = {}
        cameras = [
            key for key in policy.spec.observation if key not in canonical_space.sizes and key != EMBODIMENT
        ]
        for robot in self.robots.values():
            arm = canonical_space.arm(robot)
            if arm.name not in replays:
                keys = (*arm.keys.values(), *cameras)
                replays[arm.name] = (robot, self.assembly.replay(folder / arm.name, keys=keys))
        return ArmReplays(canonical_space, replays)

    def demo_observations(self, policy: TrainablePolicy) -> Callable[[Episode], dict[str, Array]]:
        """A function that returns the observations, and actions, of an episode to which the normalizer is fitted."""
        if not isinstance(policy, HasCanonicalSpace):
            keys = [key for key, spec in policy.spec.observation.items() if len(spec.shape) < 3]
            columns = {key: f"observation/{key}" for key in keys}
            if isinstance(policy, FitsActions):
                columns["action"] = "executed"
            return lambda episode: {key: episode.column(name) for key, name in columns.items()}
        canonical_space: CanonicalSpace = policy.canonical_space
        return lambda episode: _padded(canonical_space, episode)

    def close(self) -> None:
        self.assembly.close()


def check_equal(robots: Mapping[str, RobotSpec]) -> None:
    """Refuse arms that differ: only a shared policy can serve them."""
    (first, expected), *others = robots.items()
    for name, spec in others:
        if replace(spec, name=expected.name).hash() == expected.hash():
            continue
        try:
            match(replace(spec, name=name), stored=replace(expected, name=first))
            why = (
                f"{expected.embodiment} at {expected.control_hz:g} Hz, {spec.embodiment} at {spec.control_hz:g} Hz"
            )
        except SpecMismatch as problem:
            why = str(problem)
        raise UsageError(
            f"robots '{first}' and '{name}' differ ({why}). Set policy.type=shared and this policy as policy.policy"
        )


def build_fleet(config: RunConfig, *, components: Path | None = None) -> Fleet:
    """Build one arm of each group for its spec, and keep the first arm."""
    robots: dict[str, RobotSpec] = {}
    for names in arm_groups(config):
        robots |= _specs(config, names)
    first = next(iter(config.cluster.named_robots()))
    assembly = build_assembly(arm_configs(config)[first], components=components, name=arm_name(config, first))
    return Fleet(assembly=assembly, robots={name: robots[name] for name in config.cluster.named_robots()})


def _padded(canonical_space: CanonicalSpace, episode: Episode) -> dict[str, Array]:
    arm = canonical_space.arm(episode.robot)
    wide = {key: arm.pad_observation(key, episode.column(f"observation/{own}")) for key, own in arm.keys.items()}
    for key, size in canonical_space.sizes.items():
        wide.setdefault(key, np.zeros((len(episode), size), np.float32))
    return {**wide, EMBODIMENT: np.tile(arm.one_hot, (len(episode), 1))}
