"""A small robot with three action parts: two joints, a gripper and a mobile base. No simulator.

    robot: {type: "dovetail.testing.mobile_arm:FakeMobileArm"}
    task: {type: "dovetail.testing.mobile_arm:FakeDelivery"}

It exposes code that assumes one kind of action for all axes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dovetail.config.model import Config
from dovetail.core.contracts import Robot, Task
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec, TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

__all__ = ["FakeDelivery", "FakeDeliveryConfig", "FakeMobileArm", "FakeMobileArmConfig"]

_Vector = npt.NDArray[np.float64]
_NS_PER_S = 1e9
_JOINT_SPEED, _BASE_SPEED = 1.5, 0.4  # rad/s, m/s


class FakeMobileArmConfig(Config):
    """A fake mobile arm."""

    control_hz: float = 10.0
    """Control ticks per second."""


class FakeMobileArm:
    """The joints reach their targets within one tick. The base moves with the commanded velocity until the next command."""

    Config: ClassVar[type[FakeMobileArmConfig]] = FakeMobileArmConfig

    def __init__(self, config: FakeMobileArmConfig, *, task: Task | None = None) -> None:
        joints, base = ("shoulder", "elbow"), ("vx", "vy")
        self._spec = RobotSpec(
            name="fake_mobile_arm",
            embodiment="fake_mobile_arm",
            observation={
                "joint_pos": ArraySpec(shape=(2,), names=joints),
                "opening": ArraySpec(shape=(1,)),
                "base_position": ArraySpec(shape=(2,), names=("x", "y")),
                "base_velocity": ArraySpec(shape=(2,), names=base),
                "goal": ArraySpec(shape=(4,), names=("x", "y", *joints)),
            },
            parts=(
                ActionPart(
                    name="arm",
                    kind="joint_target",
                    unit="rad",
                    names=joints,
                    low=(-2.0, -2.0),
                    high=(2.0, 2.0),
                    max_speed=(_JOINT_SPEED, _JOINT_SPEED),
                    hold="measured",
                    measured="joint_pos",
                ),
                ActionPart(
                    name="gripper",
                    kind="gripper",
                    unit="1",
                    names=("gripper",),
                    low=(0.0,),
                    high=(1.0,),
                    max_speed=(10.0,),
                    hold="last",
                    measured="opening",
                ),
                ActionPart(
                    name="base",
                    kind="velocity",
                    unit="m/s",
                    names=base,
                    low=(-_BASE_SPEED, -_BASE_SPEED),
                    high=(_BASE_SPEED, _BASE_SPEED),
                    hold="zero",
                    measured="base_velocity",
                ),
            ),
            control_hz=config.control_hz,
        )
        self._now_ns = 0
        self.joints, self.base, self.goal = np.zeros(2), np.zeros(2), np.zeros(4)
        self.opening = 1.0
        self.velocity, self._moved = np.zeros(2), np.zeros(2)  # commanded, and of the last tick
        self._target = np.zeros(2)
        if isinstance(task, FakeDelivery):
            task.bind(self)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        values: dict[str, Array] = {
            "joint_pos": self.joints,
            "opening": np.array([self.opening]),
            "base_position": self.base,
            "base_velocity": self._moved,
            "goal": self.goal,
        }
        return Observation(
            time_ns=self._now_ns, values={key: value.astype(np.float32) for key, value in values.items()}
        )

    def send(self, action: Array) -> Array:
        executed = np.array(action, np.float32)
        if executed.shape != self._spec.action.shape or not np.isfinite(executed).all():
            raise RobotError(f"robot '{self._spec.name}' cannot execute {executed.tolist()}")
        self._target = executed[self._spec.slice_of("arm")].astype(np.float64)
        self.opening = float(executed[2])
        self.velocity = executed[self._spec.slice_of("base")].astype(np.float64)
        return executed

    def stop(self) -> None:
        self._target, self.velocity = self.joints.copy(), np.zeros(2)

    def advance(self, duration_ns: int) -> None:
        self._now_ns += duration_ns
        self.joints, self._moved = self._target.copy(), self.velocity.copy()
        self.base = self.base + self.velocity * duration_ns / _NS_PER_S

    def place(self, joints: _Vector, goal: _Vector) -> None:
        """Set joints and goal at reset; the base starts at the origin."""
        self.joints, self.goal, self.base = joints.copy(), goal.copy(), np.zeros(2)
        self.opening = 1.0
        self.stop()
        self._moved = np.zeros(2)


class FakeDeliveryConfig(Config):
    """Drive to a place, move the joints to a pose and close the gripper."""

    max_steps: int = 40
    """Steps until a timeout."""
    tolerance: float = 0.05
    """Largest distance from the goal at success, in m and rad."""


class FakeDelivery:
    """Needs all three parts: the base drives, the joints move, and the gripper closes at the goal."""

    Config: ClassVar[type[FakeDeliveryConfig]] = FakeDeliveryConfig

    def __init__(self, config: FakeDeliveryConfig) -> None:
        self._config = config
        self._robot: FakeMobileArm | None = None

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="fake_delivery", observation_keys=("goal",), embodiments=("fake_mobile_arm",))

    @property
    def prompt(self) -> str:
        return "deliver the part"

    @property
    def max_steps(self) -> int:
        return self._config.max_steps

    @property
    def tolerance(self) -> float:
        return self._config.tolerance

    def bind(self, robot: FakeMobileArm) -> None:
        """Called by a robot that is built with this task."""
        self._robot = robot

    @property
    def robot(self) -> FakeMobileArm:
        if self._robot is None:
            raise UsageError("task 'fake_delivery' has no robot yet: build one with task=...")
        return self._robot

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        self.robot.place(rng.uniform(-0.5, 0.5, 2), rng.uniform(-0.5, 0.5, 4))

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        distance = _distance(observation)
        outcome = None
        if distance < self._config.tolerance and observation.values["opening"][0] < 0.5:
            outcome = Outcome.SUCCESS
        elif num_steps >= self._config.max_steps:
            outcome = Outcome.TIMEOUT
        rewards = {"success": float(outcome is Outcome.SUCCESS)}
        return Verdict(outcome=outcome, rewards=rewards, metrics={"distance": distance})

    def expert(self) -> FakeDeliveryExpert:
        return FakeDeliveryExpert(self)


class FakeDeliveryExpert:
    """Moves base and joints together and closes the gripper at the goal."""

    def __init__(self, task: FakeDelivery) -> None:
        self._spec, self._near = task.robot.spec, 0.8 * task.tolerance
        self._rng, self._noise = np.random.default_rng(0), 0.0

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._rng, self._noise = rng, noise

    def act(self, observation: Observation) -> Array:
        values, hz = observation.values, self._spec.control_hz
        step = 0.9 * _JOINT_SPEED / hz
        joints = values["joint_pos"] + np.clip(values["goal"][2:] - values["joint_pos"], -step, step)
        velocity = (values["goal"][:2] - values["base_position"]) * hz / 2
        opening = 0.0 if _distance(observation) < self._near else 1.0
        low, high = self._spec.action.bounds
        action = np.concatenate((joints, [opening], velocity))
        action = action + 0.02 * self._noise * self._rng.normal(size=action.shape) * (high - low)
        return np.asarray(np.clip(action, low, high), np.float32)

    def progress(self, observation: Observation) -> float:
        return float(np.exp(-3.0 * _distance(observation)))


def _distance(observation: Observation) -> float:
    values = observation.values
    here = np.concatenate((values["base_position"], values["joint_pos"]))
    return float(np.linalg.norm(values["goal"] - here))
