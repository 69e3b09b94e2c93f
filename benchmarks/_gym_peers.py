"""One run of one learner on one Gymnasium environment: `python -m benchmarks._gym_peers FOLDER CASE LEARNER SEED`.

Every learner takes the same number of steps in the environment. Its deterministic policy is then evaluated here, on the same
resets and by the same loop. The result is FOLDER/CASE-LEARNER-SEED.json; a run that has one is not repeated.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from dovetail.core.disk import write_atomic
from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.robots.gl_backend import choose_gl_backend
from dovetail.robots.gym_look import NUM_STEPS

__all__ = ["CASES", "LEARNERS", "Case", "learn", "result_file"]

NUM_EPISODES = 50  # of the evaluation
FIRST_RESET = 1_000_000  # seed of its first reset
LEARNERS = ("dovetail", "sb3-sac", "sb3-ppo")
Act = Callable[[Any], Array]


class Case(NamedTuple):
    """An environment and a budget. `success_key` names success in `info`; empty: it has none."""

    env_id: str
    env_steps: int
    kwargs: Mapping[str, Any] = {}
    success_key: str = ""
    module: str = ""
    """Import registers the environment."""


CASES: Mapping[str, Case] = {
    "pendulum": Case("Pendulum-v1", 10_000),
    "reach": Case("FetchReach-v4", 10_000, success_key="is_success", module="gymnasium_robotics"),
    "reach-dense": Case("FetchReachDense-v4", 10_000, success_key="is_success", module="gymnasium_robotics"),
    "pick-cube": Case(
        "gym_hil/PandaPickCubeBase-v0", 20_000, {"reward_type": "dense"}, "succeed", module="gym_hil"
    ),
}


def result_file(folder: Path, case: str, learner: str, seed: int) -> Path:
    return folder / f"{case}-{learner}-{seed}.json"


def learn(folder: Path, case: str, learner: str, seed: int, *, env_steps: int | None = None) -> dict[str, Any]:
    """Learn, evaluate and keep the result. `env_steps` replaces the budget of the case."""
    file = result_file(folder, case, learner, seed)
    if not file.exists():
        asked = CASES[case] if env_steps is None else CASES[case]._replace(env_steps=env_steps)
        began_s = time.monotonic()
        act = _dovetail(asked, seed) if learner == "dovetail" else _sb3(asked, learner, seed)
        learned_s = time.monotonic() - began_s
        found = {"env_steps": asked.env_steps, "wall_s": learned_s, **_evaluate(asked, act)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(found).encode())
    known: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return known


def _sb3(case: Case, learner: str, seed: int) -> Act:
    """Stable-Baselines3 with its defaults."""
    try:
        from stable_baselines3 import PPO, SAC
    except ImportError as error:
        raise UsageError('Stable-Baselines3 is not installed: pip install -e ".[bench]"') from error
    env = _make(case)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
    kind = {"sb3-sac": SAC, "sb3-ppo": PPO}[learner]
    model: Any = kind(policy, env, seed=seed, device="cpu")
    model.learn(case.env_steps)
    return lambda observation: np.asarray(model.predict(observation, deterministic=True)[0])


def _dovetail(case: Case, seed: int) -> Act:
    """`dovetail run --gym ID` with what it chooses."""
    import dovetail

    env_id = f"{case.module}:{case.env_id}" if case.module else case.env_id
    settings = {
        "run.seed": seed,
        "run.env_steps": max(0, case.env_steps - NUM_STEPS),  # the look takes the others
        "run.eval_episodes": 1,
        "run.untrained_episodes": 0,
        "run.video_episodes": 0,
        "run.eval_every_steps": None,
        "robot.kwargs": dict(case.kwargs),
        **({"robot.success_key": case.success_key} if case.success_key else {}),
    }
    with tempfile.TemporaryDirectory() as runs_dir:
        policy = dovetail.run(overrides=settings, gym=env_id, name="peer", runs_dir=runs_dir).policy()
    keys = list(policy.spec.observation)

    def act(observation: Any) -> Array:
        values = observation if isinstance(observation, dict) else {keys[0]: observation}
        return np.asarray(policy.act({key: np.asarray(values[key], np.float32) for key in keys}).actions[0])

    return act


def _evaluate(case: Case, act: Act) -> dict[str, Any]:
    """`returns` and `lengths` of each episode of the environment, and whether it was successful at any step."""
    env = _make(case)
    returns, lengths, successes = [], [], []
    for index in range(NUM_EPISODES):
        observation, _ = env.reset(seed=FIRST_RESET + index)
        total, steps, first_success, ended = 0.0, 0, None, False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(act(observation))
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
            if first_success is None and case.success_key and bool(info.get(case.success_key)):
                first_success = steps
        returns.append(total)
        lengths.append(steps)
        successes.append(first_success)
    env.close()
    return {
        "return_mean": statistics.mean(returns),
        "success": sum(first is not None for first in successes) / NUM_EPISODES if case.success_key else None,
        "steps_to_success": statistics.median([n for n in successes if n is not None]) if any(successes) else None,
        "returns": returns,
        "lengths": lengths,
    }


def _make(case: Case) -> gymnasium.Env[Any, Any]:
    choose_gl_backend()  # gym_hil renders, whatever it is asked for
    if case.module:
        gymnasium.register_envs(importlib.import_module(case.module))
    return gymnasium.make(case.env_id, **case.kwargs)


if __name__ == "__main__":
    _folder, _case, _learner, _seed = sys.argv[1:5]
    learn(Path(_folder), _case, _learner, int(_seed))
