"""A trained policy for scripts: observation in, action chunk out, numpy on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dovetail.api.weights import WeightSource
from dovetail.config.load import load_saved
from dovetail.config.schema import PluginSection, RunConfig
from dovetail.core.abilities import NamesCheckpoint
from dovetail.core.contracts import Policy
from dovetail.core.errors import UsageError
from dovetail.core.images import seen_inputs
from dovetail.core.prompts import encode_prompt
from dovetail.core.proposals import OF_BASE, PROPOSAL
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.episodes.log import EpisodeLog
from dovetail.policies.base_proposals import WithoutProposals
from dovetail.policies.inputs import History
from dovetail.robot_host.following_policy import FollowingPolicy
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.assembly.policy_components import build_acting_policy, check_device, check_size
from dovetail.runs.assembly.policy_rate import policy_robot
from dovetail.runs.folder import RunFolder
from dovetail.weights.store import DiskWeightStore

__all__ = [
    "RunPolicy",
    "following_policy",
    "load_policy",
    "published_policy",
    "receiving_policy",
    "robot_and_prompt",
    "robot_of_config",
]


class RunPolicy:
    """A policy with its weights.

    policy.reset()  # at the start of each episode
    chunk = policy.act({"ee_twist": ..., "ee_error": ..., "task_state": ...})
    chunk.actions  # [H, A], in the units of the robot's action spec; with actor.policy_hz, call it at that rate
    """

    def __init__(self, policy: Policy, snapshot: WeightSnapshot, *, prompt: str = "") -> None:
        self._policy, self.version, self.prompt = policy, snapshot.version, prompt
        policy.load(snapshot)
        policy.warmup()
        self.reset()

    @property
    def policy(self) -> Policy:
        """The policy itself, with its weights."""
        return self._policy

    @property
    def spec(self) -> PolicySpec:
        """Names, shapes and history of the observations, and the action."""
        return self._policy.spec

    def reset(self) -> None:
        """Forget the observations of earlier steps."""
        self._history = History(self.spec)
        self._policy.reset()

    def act(self, observation: Mapping[str, Array], *, deterministic: bool = True) -> ActionChunk:
        """Compute the next actions from one observation, without a batch axis. Keys that it does not use are ignored.
        Images may have the camera's size."""
        if self.spec.base is not None and PROPOSAL not in observation:  # its base proposes a new chunk
            unknown = {
                key: np.full(self.spec.observation[key].shape, np.nan, np.float32)
                for key in OF_BASE
                if key in self.spec.observation
            }
            observation = {**observation, **unknown}
        missing = [key for key in self.spec.observation if key not in observation]
        if missing:
            raise UsageError(f"policy '{self.spec.name}' also needs the observations {', '.join(missing)}")
        values = seen_inputs({key: np.asarray(observation[key]) for key in self.spec.observation}, self.spec)
        inputs = self._history.add(values)
        if self.spec.prompted:
            inputs["prompt"] = encode_prompt(self.prompt)[None]
        return self._policy.act(inputs, ActContext(deterministic=deterministic)).at(0)


def load_policy(source: WeightSource) -> RunPolicy:
    """Build the policy of a run and load its weights. The robot's driver is not needed once an episode was recorded."""
    check_device(source.folder.config.policy)
    robot, prompt = _robot_and_prompt(source.folder)
    robot, snapshot = policy_robot(source.folder.config, robot), source.snapshot()
    check_size(source.folder.config.policy, robot=robot, snapshot=snapshot, components=source.folder.components)
    return RunPolicy(_build(source.folder, robot, source.folder.config.policy), snapshot, prompt=prompt)


def following_policy(
    source: WeightSource, *, log: Callable[[str], None], place: Mapping[str, Any] | None = None
) -> FollowingPolicy:
    """The policy of a run for a policy server: it also loads newer weights, unless a version or checkpoint was named.

    `place` replaces the run's settings of where it computes: `device` and `num_threads`."""
    section = source.folder.config.policy
    if place:
        changes = {f"policy.{name}": value for name, value in place.items()}
        section = load_saved(source.folder.path, changes, quiet=True)[0].policy
    check_device(section)
    robot, _ = _robot_and_prompt(source.folder)
    robot = policy_robot(source.folder.config, robot)
    follows = source.checkpoint is None and source.version is None
    store = DiskWeightStore(source.folder.weights) if follows else None
    snapshot = None if store and not store.versions() and _has_published_weights(section) else source.snapshot()
    if snapshot is not None:
        check_size(section, robot=robot, snapshot=snapshot, components=source.folder.components)
    policy = FollowingPolicy(
        lambda: _without_proposals(_build(source.folder, robot, section)), snapshot, store=store, log=log
    )
    label = "published weights" if snapshot is None else source.label(snapshot)
    log(f"policy '{policy.spec.name}', {label}" + (", and newer ones" if follows else ""))
    return policy


def published_policy(
    section: PluginSection,
    robot: RobotSpec,
    *,
    log: Callable[[str], None],
    place: Mapping[str, Any] | None = None,
) -> FollowingPolicy:
    """A policy with published weights for a policy server. They never change. `place`: as in `following_policy`."""
    if not _has_published_weights(section):
        raise UsageError(
            f"policy '{section.type}' has no weights of its own: set policy.checkpoint, or name a run that trained it"
        )
    section = replace(section, config=section.config.model_copy(update=dict(place or {})))
    check_device(section)
    policy = FollowingPolicy(lambda: build_acting_policy(section, robot=robot, seed=0), log=log)
    log(f"policy '{policy.spec.name}', published weights")
    return policy


def _without_proposals(policy: Policy) -> Policy:
    """The policy for clients of a server, which send no proposals of a base."""
    return policy if policy.spec.base is None else WithoutProposals(policy)


def _has_published_weights(section: PluginSection) -> bool:
    return isinstance(section.config, NamesCheckpoint) and bool(section.config.checkpoint)


def receiving_policy(
    config: RunConfig,
    *,
    folder: RunFolder | None,
    log: Callable[[str], None],
    place: Mapping[str, Any] | None = None,
) -> FollowingPolicy:
    """The policy of a run that learns elsewhere, for a policy server to which the arms send the weights. Until then it is
    untrained and does not act. `folder`: the run's folder, if this machine has it. `place`: as in `following_policy`."""
    section = replace(config.policy, config=config.policy.config.model_copy(update=dict(place or {})))
    check_device(section)
    robot = robot_of_config(config)
    components = folder.components if folder else None
    store = DiskWeightStore(folder.weights) if folder else None

    def make() -> Policy:
        return build_acting_policy(section, robot=robot, seed=config.run.seed, components=components)

    policy = FollowingPolicy(make, store=store, takes_weights=True, log=log)
    policy.following = False  # the arms of the run say which version to use
    log(f"policy '{policy.spec.name}', no weights until an arm of its run connects")
    return policy


def robot_of_config(config: RunConfig) -> RobotSpec:
    """The robot of a config as its policy sees it."""
    assembly = build_assembly(config.model_copy(update={"policy_server": None}))
    try:
        return assembly.policy_robot
    finally:
        assembly.close()


def _build(folder: RunFolder, robot: RobotSpec, section: PluginSection) -> Policy:
    config = folder.config
    return build_acting_policy(section, robot=robot, seed=config.run.seed, components=folder.components)


def _robot_and_prompt(folder: RunFolder) -> tuple[RobotSpec, str]:
    if folder.config.policy.type in ("remote", "openpi"):
        raise UsageError(f"run {folder.path} uses a remote policy: name the run whose policy the server has")
    return robot_and_prompt(folder, folder.config)


def robot_and_prompt(folder: RunFolder, config: RunConfig) -> tuple[RobotSpec, str]:
    """The robot of a run and its task's prompt. From the newest episode, so that the robot's driver need not be installed.
    Without episodes, or with other settings of the robot, build the robot."""
    log, run = EpisodeLog(folder.episodes), folder.config
    if (config.robot, config.cameras, config.task) == (run.robot, run.cameras, run.task):
        for episode_id in log.ids()[-1:]:
            info = log.manifest(episode_id)
            return info.robot, info.prompt
    assembly = build_assembly(config)
    try:
        return assembly.robot.spec, assembly.task.prompt
    finally:
        assembly.close()
