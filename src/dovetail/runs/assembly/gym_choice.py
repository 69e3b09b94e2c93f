"""Chooses the settings of a run for a Gymnasium environment: `dovetail run --gym FetchReach-v4`.

choice = choose("FetchReach-v4", overrides=["run.seed=3"])
config = load([choice.source], ["run.seed=3"])
choice.lines(config)  # what was chosen, and how to change it

The rules, one function each:

| section     | choice                                                                                                   |
|---|---|
| `robot`     | rate and time limit of the environment (10 Hz and 1000 steps if it has none), the success key of `info`; |
|             | success ends an episode unless rewards are positive, which an early end would cost                       |
| `algorithm` | `sac`, which needs the fewest steps; another one if the settings name it                                 |
| `labels`    | the environment's reward at every step, dense or sparse                                                  |
| `policy`    | all vectors and images; a wide first distribution, since nothing was demonstrated; vectors are           |
|             | normalized by random steps, which enlarges no value more than tenfold                                    |
| `run`       | no demonstrations, noise in every episode, a budget                                                      |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.config.load import Overrides, Source, load
from dovetail.config.schema import RunConfig
from dovetail.core.abilities import LearnsOnPolicy
from dovetail.core.errors import UsageError
from dovetail.robots.gym import GymRobotConfig
from dovetail.robots.gym_look import NUM_STEPS, GymFacts, look_at

__all__ = ["GymChoice", "choose"]

_DEFAULT_HZ, _DEFAULT_MAX_STEPS = 10.0, 1000
_MIN_STD = 0.1  # nothing is enlarged more than tenfold: a cube that is lifted later lies still in random steps
_SOFT = ("sac", "rlpd", "sac_flow")  # algorithms with the settings of a soft actor-critic
_POLICIES = {"sac_flow": "flow_actor", "ppo": "actor_critic"}  # of algorithms that need a certain one


@dataclass(frozen=True, slots=True, kw_only=True)
class GymChoice:
    """A source for `load`, and the facts that it follows from."""

    source: Mapping[str, Any]
    facts: GymFacts

    def lines(self, config: RunConfig) -> list[str]:
        """What the run does, one line per choice, with the settings that change it."""
        return _lines(self.facts, config)


def choose(env_id: str, sources: Sequence[Source] = (), overrides: Overrides = ()) -> GymChoice:
    """Look at the environment and choose what `sources` and `overrides` leave open.

    Merge `sources` and `overrides` after `source`, so that they have precedence. Their `robot` settings apply to the
    environment that is examined.
    """
    asked = load([_skeleton(env_id), *sources], overrides)
    robot = asked.robot.config
    if not isinstance(robot, GymRobotConfig):
        raise UsageError(f"--gym {env_id} needs robot.type=gym, not '{asked.robot.type}'")
    facts = look_at(robot)
    algorithm = asked.algorithm.type
    inputs = _inputs(facts, images=not _is_on_policy(algorithm))
    source: dict[str, Any] = {
        "robot": _robot(facts),
        "policy": _policy(facts, inputs, algorithm=algorithm),
        "algorithm": _algorithm(facts, algorithm),
        "learner": {"utd": 1, "start_after_steps": 500} if algorithm in _SOFT else {},
        "run": _run(facts),
    }
    if not _is_on_policy(algorithm):
        goes_on = not (robot.success_ends and source["robot"].get("success_ends", True))
        source["labels"] = [{"type": "outcome", "dense": True, "success_is_terminal": not goes_on}]
    return GymChoice(source=source, facts=facts)


def _skeleton(env_id: str) -> dict[str, Any]:
    """The least that `load` accepts, to read the settings that were given."""
    return {
        "robot": {"type": "gym", "id": env_id},
        "policy": "gaussian_mlp",
        "algorithm": "sac",
        "run": {"demos": 0},
    }


def _robot(facts: GymFacts) -> dict[str, Any]:
    robot: dict[str, Any] = {"type": "gym", "id": facts.env_id, "control_hz": facts.control_hz or _DEFAULT_HZ}
    if facts.success_key is not None:
        robot["success_key"] = facts.success_key
        robot["success_ends"] = facts.reward_range[1] <= 0.0  # an early end would cost positive rewards
    if facts.max_steps is None:
        robot["max_steps"] = _DEFAULT_MAX_STEPS
    if not np.isfinite(facts.action.bounds).all() or np.abs(facts.action.bounds).max() > 1e6:
        robot["action_limit"] = 1.0
    return robot


def _inputs(facts: GymFacts, *, images: bool) -> list[str]:
    """The observations that a policy can use: vectors and, with `images`, pictures."""
    keys = [key for key in facts.observation if key in facts.statistics or (images and key in facts.images)]
    if not keys:
        seen = ", ".join(f"{key} {spec.describe()}" for key, spec in facts.observation.items())
        needs = (
            "a vector of floats or a uint8 [H, W, 3] image"
            if images
            else "a vector of floats; algorithm=sac uses images"
        )
        raise UsageError(
            f"gym env '{facts.env_id}' has no observation for a policy: it has {seen}, but the policy needs {needs}"
        )
    return keys


def _policy(facts: GymFacts, inputs: Sequence[str], *, algorithm: str) -> dict[str, Any]:
    policy: dict[str, Any] = {"type": _POLICIES.get(algorithm, "gaussian_mlp"), "inputs": list(inputs)}
    if policy["type"] != "actor_critic":
        policy["hidden"] = [256, 256]
    if policy["type"] == "gaussian_mlp":
        policy["initial_std"] = 1.0
    if not _is_on_policy(algorithm):  # ppo keeps statistics of all its rollouts
        policy["normalization"] = {
            key: {"mean": _listed(facts.statistics[key].mean), "std": _listed(_wide(facts.statistics[key].std))}
            for key in inputs
            if key in facts.statistics
        }
    return policy


def _algorithm(facts: GymFacts, algorithm: str) -> dict[str, Any]:
    if algorithm not in _SOFT:
        return {"type": algorithm}
    return {
        "type": algorithm,
        "batch_size": 256,
        "hidden": [256, 256],
        "gamma": 0.99,
        "lr": 0.001,
        "actor_every": 1,
        "actor_q": "min",
        "actor_average": 0.0,
        "backup_entropy": True,
        "target_entropy": -float(facts.action.shape[0]),
        # an entropy bonus of the size of the reward; it adapts from there
        "temperature": round(float(np.clip(0.2 * facts.mean_reward_size, 0.01, 1.0)), 4),
    }


def _run(facts: GymFacts) -> dict[str, Any]:
    run: dict[str, Any] = {
        "demos": 0,
        "deterministic_share": 0.0,
        "env_steps": 20_000,
        "eval_episodes": 50,
        "eval_every_steps": 2_000,
        "scheduled_eval_episodes": 10,
        "untrained_episodes": 10,
    }
    if facts.images:
        run["video_camera"] = facts.images[0]
    return run


def _is_on_policy(algorithm: str) -> bool:
    from dovetail.config.plugins import resolve

    return algorithm not in _SOFT and isinstance(resolve("algorithm", algorithm), LearnsOnPolicy)


def _wide(std: Any) -> Any:
    return np.maximum(std, _MIN_STD)


def _listed(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in np.asarray(values).tolist()]


# ---- what was chosen, in words


def _lines(facts: GymFacts, config: RunConfig) -> list[str]:
    robot = config.robot.config
    assert isinstance(robot, GymRobotConfig)
    rows = [
        ("algorithm", f"{config.algorithm.type}, policy {config.policy.type}", _other_algorithm(config)),
        ("reward", _reward(facts), "robot.kwargs={...}" if robot.kwargs else ""),
        ("success", _success(facts, robot), _success_settings(facts, robot)),
        ("observations", _observations(facts, config), "policy.inputs=[KEY, ...]"),
        ("actions", _actions(facts, robot), "robot.action_limit=L" if robot.action_limit else ""),
        ("episodes", _episodes(facts, robot), "robot.max_steps=N, robot.control_hz=HZ"),
        ("budget", f"{config.run.env_steps} steps, seed {config.run.seed}", "run.env_steps=N, run.seed=N"),
    ]
    return [
        f"{facts.env_id}: chosen after {NUM_STEPS} random steps. Append key=value to change a choice",
        *(f"  {name:<13}{what}" + (f"  [{setting}]" if setting else "") for name, what, setting in rows),
    ]


def _other_algorithm(config: RunConfig) -> str:
    return "algorithm=sac" if config.algorithm.type == "ppo" else "algorithm=ppo"


def _reward(facts: GymFacts) -> str:
    low, high = facts.reward_range
    values = sorted(set(facts.rewards))
    if len(values) == 1:
        return (
            f"the environment's own; it was always {low:g}, so learning may need demonstrations, or a denser reward if the "
            "environment has one"
        )
    if len(values) <= 3:
        return f"the environment's own, sparse: {' or '.join(f'{value:g}' for value in values)}"
    return f"the environment's own, dense: {low:.3g} to {high:.3g}"


def _success(facts: GymFacts, robot: GymRobotConfig) -> str:
    if robot.success_key is not None:
        end = "ends the episode" if robot.success_ends else "does not end the episode"
        return f"info['{robot.success_key}'], which {end}"
    if robot.terminated_is_success:
        return "every termination"
    flags = ", ".join(facts.flags)
    return f"unknown; `info` has {flags}" if flags else "none: the return counts"


def _success_settings(facts: GymFacts, robot: GymRobotConfig) -> str:
    if robot.success_key is not None:
        return f"robot.success_ends={'false' if robot.success_ends else 'true'}"
    return f"robot.success_key={facts.flags[0]}" if facts.flags else ""


def _observations(facts: GymFacts, config: RunConfig) -> str:
    used = getattr(config.policy.config, "inputs", ()) or tuple(facts.observation)
    text = ", ".join(f"{key} {facts.observation[key].describe()}" for key in used if key in facts.observation)
    ignored = [key for key in facts.observation if key not in used]
    return text + (f"; not used: {', '.join(ignored)}" if ignored else "")


def _actions(facts: GymFacts, robot: GymRobotConfig) -> str:
    low, high = facts.action.bounds
    num_axes = "1 axis" if facts.action.shape[0] == 1 else f"{facts.action.shape[0]} axes"
    if robot.action_limit is not None:
        return f"{num_axes}; those without a limit get {-robot.action_limit:g} to {robot.action_limit:g}"
    same = len(set(low.tolist())) == len(set(high.tolist())) == 1
    return f"{num_axes}, {low[0]:g} to {high[0]:g}" if same else f"{num_axes}, limits of the environment"


def _episodes(facts: GymFacts, robot: GymRobotConfig) -> str:
    return f"{robot.max_steps or facts.max_steps} steps at most, at {robot.control_hz:g} Hz"
