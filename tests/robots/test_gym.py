"""Gymnasium environments as robots: conversion, time, terminations and timeouts."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.contracts import SimulatedRobot, Task
from dovetail.core.errors import ConfigWarning, RobotError, UsageError
from dovetail.core.types import Outcome, Verdict
from dovetail.robots import _gym_make
from dovetail.robots import gym as gym_robot
from dovetail.robots.gym import GymRobot, GymRobotConfig, true_or_false_keys
from dovetail.robots.safety import SafeRobot, SafetyConfig


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps, ends on request, and reuses its observation array, as many environments do."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        terminates: int = 10**9,
        truncates: int = 10**9,
        info: dict[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (2, 3), np.float32)
        self.terminates, self.truncates, self.step_info = terminates, truncates, info or {}
        self.num_steps = 0
        self.actions: list[Any] = []
        self._state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.actions.append(action)
        ended = self.num_steps >= self.terminates
        return self._observe(), 0.5, ended, self.num_steps >= self.truncates, dict(self.step_info)

    def render(self) -> Any:
        return np.full((4, 6, 3), self.num_steps, np.uint8)

    def _observe(self) -> Any:
        if isinstance(self.observation_space, spaces.Box):
            self._state[:] = self.num_steps
            return self._state
        return {
            "arm": {
                "joints": np.full(3, self.num_steps, np.float64),
                "depth": np.zeros((4, 5, 1), np.uint16),
            },
            "front": np.full((8, 6, 3), self.num_steps, np.uint8),
            "grey": np.full((8, 6, 1), 7, np.uint8),
            "count": np.array(self.num_steps, np.float32),
        }


DICT_SPACE = spaces.Dict(
    {
        "arm": spaces.Dict(
            {"joints": spaces.Box(-9, 9, (3,), np.float64), "depth": spaces.Box(0, 9, (4, 5, 1), np.uint16)}
        ),
        "front": spaces.Box(0, 255, (8, 6, 3), np.uint8),
        "grey": spaces.Box(0, 255, (8, 6, 1), np.uint8),
        "count": spaces.Box(-np.inf, np.inf, (), np.float32),
    }
)
gymnasium.register("test/Counter-v0", entry_point=f"{__name__}:Counter")


class Rig:
    """A gym robot on a simulated clock, through the safety filter."""

    def __init__(self, env_id: str = "test/Counter-v0", *, hz: float = 10.0, **config: Any) -> None:
        self.robot = GymRobot(GymRobotConfig(id=env_id, control_hz=hz, **config))
        self.clock = SimulatedClock()
        self.clock.on_advance(self.robot.advance)
        self.safe = SafeRobot(self.robot, SafetyConfig(), self.clock)
        self.num_steps = 0

    def reset(self, seed: int = 0) -> None:
        self.robot.task.reset(self.safe, rng=np.random.default_rng(seed))
        self.safe.reset()
        self.safe.observe()
        self.start_ns, self.num_steps = self.clock.now_ns(), 0

    def step(self, action: Any = None) -> Verdict:
        self.safe.send(np.zeros(self.robot.spec.action.shape) if action is None else action)
        self.num_steps += 1
        self.clock.sleep_until(self.start_ns + int(self.num_steps * NS_PER_S / self.robot.spec.control_hz))
        return self.robot.task.judge(self.safe, self.safe.observe(), num_steps=self.num_steps)

    def until_end(self, limit: int = 1000) -> Verdict:
        self.reset()
        while (verdict := self.step()).outcome is None:
            assert self.num_steps < limit
        return verdict


def kwargs(**values: Any) -> dict[str, Any]:
    return {"kwargs": values}


def test_gym_robot_and_task_implement_the_contracts() -> None:
    robot = GymRobot(GymRobotConfig(id="Pendulum-v1"))
    assert isinstance(robot, SimulatedRobot)
    assert isinstance(robot.task, Task)
    with pytest.raises(UsageError, match="expert"):
        robot.task.expert()


def test_pendulum() -> None:
    rig = Rig("Pendulum-v1", hz=20.0)
    spec = rig.robot.spec
    assert list(spec.observation) == ["state"]
    assert spec.observation["state"].describe() == "float32[3]"
    assert spec.action.low == (-2.0,)
    assert spec.action.high == (2.0,)
    rig.reset(seed=3)
    reference = gymnasium.make("Pendulum-v1")
    raw, _ = reference.reset(seed=int(np.random.default_rng(3).integers(2**31)))
    np.testing.assert_array_equal(rig.robot.observe().values["state"], raw)
    for _ in range(5):
        verdict = rig.step(np.array([1.5]))
        raw, reward, *_ = reference.step(np.array([1.5], np.float32))
        np.testing.assert_array_equal(rig.robot.observe().values["state"], raw)
        assert verdict.rewards == {"env": pytest.approx(float(reward))}
    assert rig.until_end().outcome is Outcome.TIMEOUT
    assert rig.num_steps == 200


@pytest.mark.parametrize("hz", [3.0, 7.0, 10.0, 15.0, 30.0, 60.0])
def test_one_step_per_tick_for_any_rounding(hz: float) -> None:
    rig = Rig(hz=hz)
    rig.reset()
    for n in range(1, 200):
        rig.step()
        assert rig.robot.observe().values["state"][0] == n


def test_long_sleep_repeats_the_action_and_adds_up_the_reward() -> None:
    rig = Rig()
    rig.reset()
    rig.robot.send(np.zeros(6))
    rig.clock.sleep_until(int(0.35 * NS_PER_S))
    assert rig.robot.observe().values["state"][0] == 3
    assert rig.robot.task.judge(rig.robot, rig.robot.observe(), num_steps=1).reward == 1.5


def test_nothing_moves_without_a_command_or_after_stop() -> None:
    rig = Rig()
    rig.reset()
    rig.clock.sleep_until(NS_PER_S)
    assert rig.robot.observe().values["state"][0] == 0
    assert rig.robot.observe().time_ns == NS_PER_S
    rig.robot.send(np.zeros(6))
    rig.robot.stop()
    rig.robot.stop()
    rig.clock.sleep_until(2 * NS_PER_S)
    assert rig.robot.observe().values["state"][0] == 0


def test_actions_are_reshaped_clipped_and_not_aliased() -> None:
    rig = Rig()
    rig.reset()
    action = np.array([0.1, -0.2, 0.3, 5.0, -5.0, 0.6])
    executed = rig.robot.send(action)
    action[:] = 0
    np.testing.assert_allclose(executed, [0.1, -0.2, 0.3, 1, -1, 0.6], rtol=1e-6)
    executed[:] = 0
    rig.clock.sleep_until(NS_PER_S // 10)
    sent = rig.robot._env.unwrapped.actions[-1]  # type: ignore[attr-defined]
    assert sent.dtype == np.float32
    np.testing.assert_allclose(sent, [[0.1, -0.2, 0.3], [1, -1, 0.6]], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.full(6, np.nan), np.zeros(5)])
def test_bad_actions_never_reach_the_env(bad: Any) -> None:
    with pytest.raises(RobotError):
        Rig().robot.send(bad)


def test_dict_images_and_scalars() -> None:
    rig = Rig(**kwargs(observation_space=DICT_SPACE))
    described = {key: spec.describe() for key, spec in rig.robot.spec.observation.items()}
    assert described == {
        "arm/depth": "uint16[4, 5, 1]",
        "arm/joints": "float32[3]",
        "count": "float32[1]",
        "front": "uint8[8, 6, 3]",
        "grey": "float32[8, 6, 1]",
    }
    assert rig.robot.spec.observation["front"].is_image
    rig.reset()
    first = rig.robot.observe()
    rig.step()
    second = rig.robot.observe()
    assert (first.values["front"] == 0).all()
    assert (second.values["front"] == 1).all()
    for key, value in second.values.items():
        spec = rig.robot.spec.observation[key]
        assert (value.shape, value.dtype.name) == (spec.shape, spec.dtype)
        assert not value.flags.writeable


def test_box_observation_is_not_the_envs_own_array() -> None:
    rig = Rig()
    rig.reset()
    first = rig.robot.observe()
    rig.step()
    assert first.values["state"][0] == 0


def test_rendered_image_as_observation() -> None:
    rig = Rig("test/Counter-v0", render_key="front")
    assert rig.robot.spec.observation["front"].describe() == "uint8[4, 6, 3]"
    rig.reset()
    rig.step()
    assert (rig.robot.observe().values["front"] == 1).all()


def test_termination_without_success_key_ends_the_return_and_tells_no_success() -> None:
    rig = Rig(**kwargs(terminates=3))
    assert not rig.robot.task.spec.has_success
    assert rig.until_end().outcome is Outcome.FAILURE
    rig = Rig(terminated_is_success=True, **kwargs(terminates=3))
    assert rig.robot.task.spec.has_success
    assert rig.until_end().outcome is Outcome.SUCCESS
    assert rig.num_steps == 3


@pytest.mark.parametrize("info", [{"is_success": 0.0}, {"success": False}])
def test_env_with_a_known_success_key_has_success(info: dict[str, Any]) -> None:
    assert Rig(**kwargs(info=info)).robot.task.spec.has_success


def test_unknown_word_for_success_is_reported_once_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_robot, "_reported", set())
    info = {"succeed": np.bool_(False), "TimeLimit.truncated": False, "distance": 0.3}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rig = Rig(**kwargs(info=info, terminates=2))
        rig.until_end()
        Rig(**kwargs(info=info))
    (message,) = [str(one.message) for one in seen if issubclass(one.category, ConfigWarning)]
    assert message.endswith(
        "It has succeed. If one of them reports success, set robot.success_key=succeed now: a resumed run keeps it"
    )
    assert not rig.robot.task.spec.has_success
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Rig(success_key="succeed", **kwargs(info=info)).robot.task.spec.has_success


def test_true_or_false_keys_are_flags_and_zero_or_one() -> None:
    info = {"a": True, "b": np.array([1.0]), "c": 0, "d": 0.5, "e": "yes", "f": np.zeros(2), "g": None}
    assert true_or_false_keys(info) == ["a", "b", "c"]


def test_env_that_renders_itself_works_without_a_display_and_without_variables() -> None:
    code = (
        "from dovetail.robots.gym import GymRobot, GymRobotConfig;"
        "robot = GymRobot(GymRobotConfig(id='FetchReach-v4', render_key='front', kwargs={'width': 32, 'height': 32}));"
        "print(robot.observe().values['front'].max() > 0)"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("True"), done.stderr


def test_termination_with_success_false_is_always_failure() -> None:
    rig = Rig(terminated_is_success=True, **kwargs(terminates=3, info={"is_success": 0.0}))
    assert rig.until_end().outcome is Outcome.FAILURE


@pytest.mark.parametrize("key", ["is_success", "success"])
def test_success_without_termination(key: str) -> None:
    rig = Rig(**kwargs(info={key: np.float32(1)}))
    verdict = rig.until_end()
    assert (verdict.outcome, rig.num_steps, verdict.metrics) == (Outcome.SUCCESS, 1, {"is_success": 1.0})
    rig = Rig(success_ends=False, **kwargs(info={key: True}, truncates=4))
    verdict = rig.until_end()
    assert (verdict.outcome, rig.num_steps, verdict.metrics) == (Outcome.SUCCESS, 4, {"is_success": 1.0})


def test_named_success_key() -> None:
    rig = Rig(success_key="solved", **kwargs(info={"solved": True, "is_success": False}, terminates=2))
    assert rig.until_end().outcome is Outcome.SUCCESS


def test_truncated_is_a_timeout() -> None:
    assert Rig(**kwargs(truncates=3)).until_end().outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(("info", "outcome"), [({}, Outcome.FAILURE), ({"is_success": True}, Outcome.SUCCESS)])
def test_terminated_and_truncated_on_one_step_is_an_end(info: dict[str, Any], outcome: Outcome) -> None:
    assert Rig(**kwargs(terminates=3, truncates=3, info=info)).until_end().outcome is outcome


def test_last_observation_stays_after_the_end() -> None:
    rig = Rig(**kwargs(terminates=3))
    rig.until_end()
    last = rig.robot.observe().values["state"].copy()
    verdict = rig.step()
    np.testing.assert_array_equal(rig.robot.observe().values["state"], last)
    np.testing.assert_array_equal(last, [3, 3])
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILURE, 0.0)


def test_max_steps_replaces_the_envs_limit() -> None:
    rig = Rig("Pendulum-v1", max_steps=250)
    assert rig.until_end().outcome is Outcome.TIMEOUT
    assert rig.num_steps == 250


def test_resets_follow_the_rng() -> None:
    rig = Rig("Pendulum-v1")

    def start(seed: int) -> np.ndarray[Any, Any]:
        rig.reset(seed)
        return rig.robot.observe().values["state"]

    np.testing.assert_array_equal(start(1), start(1))
    assert not np.array_equal(start(1), start(2))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id": "Pendulm-v1"}, "Did you mean 'Pendulum-v1'"),
        ({"id": "Pendulm-v1"}, "write module:Name-v0"),
        ({"id": "Nothing/LikeIt-v0"}, "no gym env.*write module:Name-v0"),
        ({"id": "Pendulum-v99"}, "no gym env 'Pendulum-v99'"),
        ({"id": "no_such_module:Env-v0"}, "no_such_module"),
        ({"id": "CartPole-v1"}, r"Discrete\(2\)"),
        ({"id": "Pendulum-v1", "kwargs": {"gravity_": 1}}, "gravity_"),
        ({"id": "test/Counter-v0", "kwargs": {"observation_space": spaces.Discrete(3)}}, "Discrete"),
        (
            {
                "id": "test/Counter-v0",
                "kwargs": {"observation_space": spaces.Dict({"arm": spaces.Dict({"mask": spaces.Box(0, 1)})})},
            },
            "arm/mask",
        ),
        (
            {"id": "test/Counter-v0", "kwargs": {"action_space": spaces.Box(0, 9, (2,), np.int64)}},
            "Box of floats",
        ),
        ({"id": "test/Counter-v0", "render_key": "state"}, "render_key"),
    ],
)
def test_wrong_use_gives_one_line_error(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        GymRobot(GymRobotConfig(**config))
    assert "\n" not in str(caught.value)


def test_fetch_reach() -> None:
    rig = Rig("FetchReach-v4", hz=25.0)
    assert set(rig.robot.spec.observation) == {"observation", "achieved_goal", "desired_goal"}
    assert rig.robot.spec.action.shape == (4,)
    rig.reset(seed=0)
    verdict = Verdict(outcome=None)
    while verdict.outcome is None:  # straight to the goal
        values = rig.safe.observe().values
        delta = 5.0 * (values["desired_goal"] - values["achieved_goal"])
        verdict = rig.step(np.append(delta, 0.0))
    assert verdict.outcome is Outcome.SUCCESS
    assert rig.num_steps < 50
    rig.reset(seed=2)
    while (verdict := rig.step()).outcome is None:
        pass
    assert (verdict.outcome, rig.num_steps) == (Outcome.TIMEOUT, 50)


_OWN_ENV = """
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv
gymnasium.register("Swing-v0", entry_point=PendulumEnv, max_episode_steps=5)
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder that registers Swing-v0."""
    (tmp_path / "own_swing_env.py").write_text(_OWN_ENV)
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('code of the folder ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_swing_env"
    sys.modules.pop("own_swing_env", None)
    gymnasium.registry.pop("Swing-v0", None)


def test_env_of_a_module_in_the_current_folder_is_found_after_installed_modules(own_module: str) -> None:
    here = str(Path.cwd())
    assert here not in sys.path
    assert Rig(f"{own_module}:Swing-v0").until_end().outcome is Outcome.TIMEOUT
    assert sys.path[-1] == here


def test_installed_module_wins_over_the_current_folder(own_module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(UsageError, match="no gym env 'colorsys:Swing-v0'"):
        GymRobot(GymRobotConfig(id="colorsys:Swing-v0"))


def test_suggestion_for_an_own_env_keeps_its_module(own_module: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean '{own_module}:Swing-v0'"):
        GymRobot(GymRobotConfig(id=f"{own_module}:Swingg-v0"))


def test_own_module_that_fails_is_one_line(own_module: str) -> None:
    Path("broken_env.py").write_text("1 / 0")
    with pytest.raises(UsageError, match=r"cannot import module 'broken_env' \(ZeroDivisionError"):
        GymRobot(GymRobotConfig(id="broken_env:Swing-v0"))


def test_warning_of_gymnasium_is_shown_once_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gym_make, "_shown", set())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            GymRobot(GymRobotConfig(id="Pendulum"))
    (message,) = [str(one.message) for one in seen]
    assert message.startswith("Using the latest versioned environment `Pendulum-v1`")


def test_import_of_a_provider_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    code = "from dovetail.robots.gym import *; GymRobot(GymRobotConfig(id='FetchReach-v4'))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr() == ("", "")
