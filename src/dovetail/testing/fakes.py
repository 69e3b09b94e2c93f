"""Small robots and a task without a simulator, for tests.

`FakeArm` is one arm with end effector deltas. `FakeBimanual` has 24 joints and three cameras of 320x240; it exposes code
that assumes seven joints.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dovetail.config.model import Config
from dovetail.core.contracts import Robot, Task
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec, TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict

__all__ = [
    "FakeArm",
    "FakeArmConfig",
    "FakeBimanual",
    "FakeBimanualConfig",
    "FakeExpert",
    "FakeTask",
    "FakeTaskConfig",
]

_Vector = npt.NDArray[np.float64]
_DOWN_TURNED = np.array(
    (0.0, np.cos(0.3), np.sin(0.3), 0.0)
)  # pointing down, rotated: differs from the base frame

_JOINT_STEP = 0.08  # rad per tick, just below the safety filter's limit at 20 Hz


class FakeArmConfig(Config):
    """A fake arm."""

    control_hz: float = 10.0
    """Control ticks per second."""
    image_size: tuple[int, int] | None = None
    """Width and height of a camera `front` in pixels. Null: no camera."""
    max_jump_m: float | None = None
    """Longest distance that a reset may set the arm apart, for an arm whose speed a guard measures. Null: any."""


class FakeArm:
    """A point that reaches its target within one tick. Deltas are in a reset frame that differs from the base frame."""

    Config: ClassVar[type[FakeArmConfig]] = FakeArmConfig

    def __init__(self, config: FakeArmConfig, *, task: Task | None = None) -> None:
        self._max_jump_m = config.max_jump_m
        observation = {
            "ee_pose": ArraySpec(shape=(7,), names=("x", "y", "z", "qw", "qx", "qy", "qz")),
            "gripper": ArraySpec(shape=(1,)),
            "goal": ArraySpec(shape=(3,)),
        }
        if config.image_size is not None:
            width, height = config.image_size
            observation["front"] = ArraySpec(shape=(height, width, 3), dtype="uint8")
        self._spec = RobotSpec(
            name="fake_arm",
            embodiment="fake_arm",
            observation=observation,
            action=ArraySpec(
                shape=(7,),
                names=("dx", "dy", "dz", "drx", "dry", "drz", "gripper"),
                low=(-0.02,) * 3 + (-0.1,) * 3 + (0.0,),
                high=(0.02,) * 3 + (0.1,) * 3 + (1.0,),
            ),
            action_kind="ee_delta",
            control_hz=config.control_hz,
        )
        self._motion = _Motion(self._spec, size=3)
        self.frame = _matrix(_DOWN_TURNED)  # reset frame to base frame; this arm never rotates
        self.gripper = 1.0
        if isinstance(task, FakeTask):
            task.bind(self)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        motion = self._motion
        values: dict[str, Array] = {
            "ee_pose": np.concatenate((motion.state, _DOWN_TURNED)).astype(np.float32),
            "gripper": np.array([self.gripper], np.float32),
            "goal": motion.goal.astype(np.float32),
        }
        return motion.observation(values)

    def send(self, action: Array) -> Array:
        executed = self._motion.checked(action)
        self._motion.target = self._motion.state + self.frame @ executed[:3]
        self.gripper = float(executed[6])
        return executed

    def stop(self) -> None:
        self._motion.stop()

    def advance(self, duration_ns: int) -> None:
        self._motion.advance(duration_ns)

    def place(self, state: _Vector, goal: _Vector) -> None:
        """Set state and goal at reset."""
        if (longest := self._max_jump_m) is not None:
            jump = state - self._motion.state
            state = self._motion.state + jump * min(1.0, longest / max(float(np.linalg.norm(jump)), 1e-9))
        self._motion.place(state, goal)
        self.gripper = 1.0


class FakeBimanualConfig(Config):
    """Two fake arms."""

    control_hz: float = 20.0
    """Control ticks per second."""
    image_size: tuple[int, int] = (320, 240)
    """Width and height of the images in pixels."""


class FakeBimanual:
    """Two arms with hands: 24 absolute joint targets, 24 joint positions, three cameras."""

    Config: ClassVar[type[FakeBimanualConfig]] = FakeBimanualConfig
    CAMERAS = ("head", "left_wrist", "right_wrist")

    def __init__(self, config: FakeBimanualConfig, *, task: Task | None = None) -> None:
        width, height = config.image_size
        parts = [f"arm{i + 1}" for i in range(6)] + [f"finger{i + 1}" for i in range(6)]
        joints = tuple(f"{side}_{part}" for side in ("left", "right") for part in parts)
        self._spec = RobotSpec(
            name="fake_bimanual",
            embodiment="fake_bimanual",
            observation={
                "joint_pos": ArraySpec(shape=(24,), names=joints),
                "goal": ArraySpec(shape=(24,), names=joints),
                **{name: ArraySpec(shape=(height, width, 3), dtype="uint8") for name in self.CAMERAS},
            },
            action=ArraySpec(shape=(24,), names=joints, low=(-1.5,) * 24, high=(1.5,) * 24),
            action_kind="joint_target",
            control_hz=config.control_hz,
        )
        self._motion = _Motion(self._spec, size=24)
        if isinstance(task, FakeTask):
            task.bind(self)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        motion = self._motion
        return motion.observation(
            {"joint_pos": motion.state.astype(np.float32), "goal": motion.goal.astype(np.float32)}
        )

    def send(self, action: Array) -> Array:
        executed = self._motion.checked(action)
        self._motion.target = executed.astype(np.float64)
        return executed

    def stop(self) -> None:
        self._motion.stop()

    def advance(self, duration_ns: int) -> None:
        self._motion.advance(duration_ns)

    def place(self, state: _Vector, goal: _Vector) -> None:
        self._motion.place(state, goal)


class _Motion:
    """Time, a state that moves to its target, and images, for both fakes."""

    def __init__(self, spec: RobotSpec, *, size: int) -> None:
        self._spec = spec
        self._low, self._high = spec.action.bounds
        self._now_ns = 0
        self.state, self.target, self.goal = np.zeros(size), np.zeros(size), np.zeros(size)

    def checked(self, action: Array) -> npt.NDArray[np.float32]:
        executed = np.array(action, np.float32)
        if executed.shape != self._spec.action.shape or not np.isfinite(executed).all():
            raise RobotError(f"robot '{self._spec.name}' cannot execute {executed.tolist()}")
        return np.asarray(np.clip(executed, self._low, self._high), np.float32)

    def observation(self, values: dict[str, Array]) -> Observation:
        shade = int(np.clip(np.linalg.norm(self.state - self.goal) * 100, 0, 255))
        for key, spec in self._spec.observation.items():
            if spec.is_image:
                values[key] = np.full(spec.shape, shade, np.uint8)
        return Observation(time_ns=self._now_ns, values=values)

    def advance(self, duration_ns: int) -> None:
        self._now_ns += duration_ns
        self.state = self.target.copy()

    def stop(self) -> None:
        self.target = self.state.copy()

    def place(self, state: _Vector, goal: _Vector) -> None:
        self.state, self.target, self.goal = state.copy(), state.copy(), goal.copy()


class FakeTaskConfig(Config):
    """Reach a goal."""

    max_steps: int = 60
    """Steps until a timeout."""
    tolerance: float = 0.01
    """Largest distance from the goal at success."""


class FakeTask:
    """Reach the observed goal, with either fake robot."""

    Config: ClassVar[type[FakeTaskConfig]] = FakeTaskConfig

    def __init__(self, config: FakeTaskConfig) -> None:
        self._config = config
        self._robot: FakeArm | FakeBimanual | None = None

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name="fake_reach", observation_keys=("goal",), embodiments=("fake_arm", "fake_bimanual"))

    @property
    def prompt(self) -> str:
        return "go to the goal"

    @property
    def max_steps(self) -> int:
        return self._config.max_steps

    def bind(self, robot: FakeArm | FakeBimanual) -> None:
        """Called by a fake robot that is built with this task."""
        self._robot = robot

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        bare = self.robot
        if isinstance(bare, FakeArm):
            low, high = (0.3, -0.2, 0.2), (0.5, 0.2, 0.4)
            bare.place(rng.uniform(low, high), rng.uniform(low, high))
        else:
            bare.place(rng.uniform(-0.5, 0.5, 24), rng.uniform(-0.5, 0.5, 24))

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        distance = _distance(observation)
        outcome = None
        if distance < self._config.tolerance:
            outcome = Outcome.SUCCESS
        elif num_steps >= self._config.max_steps:
            outcome = Outcome.TIMEOUT
        return Verdict(
            outcome=outcome,
            rewards={"success": float(outcome is Outcome.SUCCESS)},
            metrics={"distance": distance},
        )

    def expert(self) -> FakeExpert:
        return FakeExpert(self.robot)

    @property
    def robot(self) -> FakeArm | FakeBimanual:
        if self._robot is None:
            raise UsageError("task 'fake_reach' has no robot yet: build one with task=...")
        return self._robot


class FakeExpert:
    """Moves straight to the goal, as fast as the limits allow."""

    def __init__(self, robot: FakeArm | FakeBimanual) -> None:
        self._robot = robot
        self._low, self._high = robot.spec.action.bounds
        self._rng, self._noise = np.random.default_rng(0), 0.0

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        self._rng, self._noise = rng, noise

    def act(self, observation: Observation) -> Array:
        values = observation.values
        tremor = 0.1 * self._noise * self._rng.normal(size=self._low.shape)
        if isinstance(self._robot, FakeArm):
            delta = (values["goal"] - values["ee_pose"][:3]) @ self._robot.frame
            action = np.concatenate((delta, np.zeros(3), [1.0])) + tremor * (self._high - self._low)
        else:
            step = np.clip(values["goal"] - values["joint_pos"], -_JOINT_STEP, _JOINT_STEP)
            action = values["joint_pos"] + step + tremor * _JOINT_STEP
        return np.asarray(np.clip(action, self._low, self._high), np.float32)

    def progress(self, observation: Observation) -> float:
        return float(np.exp(-3.0 * _distance(observation)))


def _distance(observation: Observation) -> float:
    values = observation.values
    here = values["ee_pose"][:3] if "ee_pose" in values else values["joint_pos"]
    return float(np.linalg.norm(values["goal"] - here))


def _matrix(quat: _Vector) -> _Vector:
    """Rotation matrix of a quaternion (w, x, y, z)."""
    w, v = quat[0], quat[1:]
    cross = np.array(((0, -v[2], v[1]), (v[2], 0, -v[0]), (-v[1], v[0], 0)))
    return np.asarray((w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross)
