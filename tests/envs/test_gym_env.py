"""Dovetail's tasks as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dovetail.config.plugins import BUILTIN
from dovetail.core.errors import ConfigError, PluginError, RobotFault, UsageError
from dovetail.envs import ENVS, register
from dovetail.envs.gym_env import DovetailEnv
from dovetail.robots.gym import GymRobot, GymRobotConfig

FAKE: dict[str, Any] = {"task": "dovetail.testing.fakes:FakeTask", "robot": "dovetail.testing.fakes:FakeArm"}
BIMANUAL = FAKE | {"robot": "dovetail.testing.fakes:FakeBimanual"}
gymnasium.register("test/FakeReach-v0", entry_point="dovetail.envs.gym_env:DovetailEnv", kwargs=FAKE)


def check(env_id: str, **kwargs: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*WARN.*")
        # advice about infinite observations and actions not within [-1, 1]: ours are in physical units
        warnings.filterwarnings("ignore", message=".*(infinity|normalized space).*")
        check_env(gymnasium.make(env_id, **kwargs).unwrapped)


@pytest.mark.parametrize("env_id", sorted(ENVS))
def test_task_passes_gymnasiums_checks(env_id: str) -> None:
    check(env_id)


def test_fake_task_passes_gymnasiums_checks() -> None:
    check("test/FakeReach-v0", robot_config={"image_size": (16, 12)})


def test_every_task_is_registered_once() -> None:
    # a table has no simulated success, and igris_reach needs the emulated robot
    assert set(ENVS.values()) == set(BUILTIN["task"]) - {"table", "igris_reach"}
    register()
    register()
    assert set(ENVS) <= set(gymnasium.registry)


def test_make_loads_neither_torch_nor_ray() -> None:
    code = (
        "import dovetail, gymnasium, sys; env = gymnasium.make('dovetail/PegInsertion-v0');"
        "env.reset(seed=0); print('torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_success_terminates() -> None:
    env = DovetailEnv(**FAKE)
    values, info = env.reset(seed=1)
    frame = env.unwrapped._raw.frame  # type: ignore[attr-defined]
    assert info == {"is_success": False}
    total, ended, cut = 0.0, False, False
    while not ended and not cut:
        delta = (values["goal"] - values["ee_pose"][:3]) @ frame
        values, reward, ended, cut, info = env.step(np.concatenate((delta, np.zeros(3), [1.0])).astype(np.float32))
        total += reward
    assert (total, ended, cut, info["is_success"]) == (1.0, True, False, True)
    assert info["rewards"] == {"success": 1.0}
    assert set(info["metrics"]) == {"distance"}
    assert info["executed"].shape == (7,)


def test_time_limit_truncates() -> None:
    env = DovetailEnv(**BIMANUAL, task_config={"max_steps": 7}, robot_config={"image_size": (8, 6)})
    values, _ = env.reset(seed=0)
    assert values["head"].shape == (6, 8, 3)
    ends = [env.step(values["joint_pos"])[2:4] for _ in range(7)]
    assert ends == [(False, False)] * 6 + [(False, True)]


def test_actions_pass_the_safety_filter() -> None:
    env = DovetailEnv(**FAKE, safety={"max_step": 0.001, "max_bad_actions": 2})
    env.reset(seed=0)
    info = env.step(np.full(7, 9.0, np.float32))[4]
    np.testing.assert_allclose(info["executed"], [0.001] * 6 + [1.0], rtol=1e-6)
    np.testing.assert_allclose(env.step(np.full(7, np.nan, np.float32))[4]["executed"][:6], 0.0)
    with pytest.raises(RobotFault):
        env.step(np.full(7, np.nan, np.float32))
    env.reset()
    env.step(np.zeros(7, np.float32))


def test_dense_reward_and_render() -> None:
    env = gymnasium.make("dovetail/PegInsertion-v0", reward="dense", render_mode="rgb_array", render_size=(64, 48))
    env.reset(seed=0)
    info = env.step(np.zeros(env.action_space.shape or (), np.float32))[4]
    assert len(info["rewards"]) == 2
    image: Any = env.render()
    assert (image.shape, image.dtype) == ((48, 64, 3), np.uint8)
    env.close()
    env.close()


def test_environment_can_be_used_as_a_gym_robot() -> None:
    robot = GymRobot(GymRobotConfig(id="test/FakeReach-v0"))
    assert set(robot.spec.observation) == {"ee_pose", "gripper", "goal"}
    assert robot.spec.action.shape == (7,)


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"task": "peg_insertoin"}, PluginError),
        (FAKE | {"reward": "dense"}, UsageError),
        (FAKE | {"reward": "much"}, UsageError),
        (FAKE | {"render_mode": "human"}, UsageError),
        (FAKE | {"render_mode": "rgb_array"}, UsageError),
        (FAKE | {"task_config": {"max_stepps": 3}}, ConfigError),
    ],
)
def test_wrong_argument_is_refused_in_one_line(kwargs: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        DovetailEnv(**kwargs)
    assert "\n" not in str(caught.value)
