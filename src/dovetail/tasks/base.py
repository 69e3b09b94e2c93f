"""Base of the simulated tasks: reset, verdicts with a hold time, time limits, and the motion of experts.

A task defines its scene (`xml`), its start (`place`) and its predicates (`solved`, `failed`, `completion`, `read_state`).
If it has an expert, it also defines the expert's next goal (`goal`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core.contracts import Robot
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec, TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import quat_conjugate, quat_multiply, quat_to_matrix, quat_to_rotvec
from dovetail.robots.sim.world import World
from dovetail.tasks.settings import SimTaskConfig

__all__ = ["Goal", "SimTask", "SimTaskConfig", "WaypointExpert"]

Vector = NDArray[np.float64]

_MAX_PUSH_RAD = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The expert's next TCP pose in the base frame, its speed and gripper command."""

    position: Vector
    quat: Vector
    gripper: float  # 0 closed, 1 open
    speed: float = 1.0  # relative to the action limits


class SimTask(ABC):
    """A task with its scene. One instance belongs to one world, which `bind` sets."""

    name: ClassVar[str]
    prompt: ClassVar[str]
    arms: ClassVar[tuple[str, ...]] = ("franka_panda", "arx_x5")
    table: ClassVar[bool] = True
    fixed_gripper: ClassVar[float | None] = None
    """Constant gripper command; the action then has no gripper axis. None: the action has one."""
    state_names: ClassVar[tuple[str, ...]]

    def __init__(self, config: SimTaskConfig) -> None:
        self.config = config
        self.reset_rotation: Vector = np.eye(
            3
        )  # the frame of actions and state: of the TCP at reset, or of the base
        self._world: World | None = None
        self._robot: RobotSpec | None = None
        self._on_reset: Callable[[], None] = lambda: None
        self._true_since_ns: int | None = None
        self._done = False
        self._last_potential = 0.0

    # ---- defined by each task

    @abstractmethod
    def xml(self, arm: Arm) -> str:
        """The scene as MJCF; see `Scene`."""

    @abstractmethod
    def place(self, world: World, rng: np.random.Generator) -> None:
        """Place the arm and the objects at the start of an episode. May run physics."""

    @abstractmethod
    def solved(self, world: World) -> bool:
        """The success predicate for the current simulator state."""

    @abstractmethod
    def completion(self, world: World) -> float:
        """Progress from 0 to 1."""

    def potential(self, world: World) -> float:
        """The dense reward is the difference of this value between steps. May be negative."""
        return self.completion(world)

    def goal(self, world: World) -> Goal:
        """The expert's goal for the current state. It is feedback control, so the expert can take over in any state. A task
        without this method has no expert."""
        raise NotImplementedError

    @abstractmethod
    def read_state(self, world: World) -> NDArray[np.float32]:
        """The task's state sensor: one value per name in `state_names`, in the frame of the reset pose."""

    def failed(self, world: World) -> bool:
        """Whether the task can no longer succeed, for example because an object fell off the table."""
        return False

    def metrics(self, world: World) -> Mapping[str, float]:
        return {}

    # ---- the Task contract

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(name=self.name, observation_keys=("task_state",), embodiments=self.arms)

    @property
    def world(self) -> World:
        if self._world is None:
            raise UsageError(f"task '{self.name}' has no world yet: build a sim robot with task=...")
        return self._world

    @property
    def done(self) -> bool:
        """Whether this episode has succeeded."""
        return self._done

    def bind(self, world: World, *, robot: RobotSpec, on_reset: Callable[[], None]) -> None:
        """Called once by the robot. `on_reset` resets the reference of its controller."""
        self._world, self._robot, self._on_reset = world, robot, on_reset

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        world = self.world
        world.reset()
        self.place(world, rng)
        world.forward()
        if not any(part.frame == "base" for part in self.robot.parts):
            self.reset_rotation = quat_to_matrix(world.tcp_pose()[1])
        self._on_reset()
        self._true_since_ns, self._done = None, False
        self._last_potential = self.potential(world)

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        world = self.world
        if not self.solved(world):
            self._true_since_ns = None
        elif self._true_since_ns is None:
            self._true_since_ns = world.time_ns
        held_ns = -1 if self._true_since_ns is None else world.time_ns - self._true_since_ns
        self._done = held_ns >= self.config.hold_s * 1e9
        completion = self.completion(world)
        rewards = {"success": float(self._done)}
        if self.config.reward == "dense":
            potential = self.potential(world)
            rewards["progress"] = potential - self._last_potential
            self._last_potential = potential
        outcome = None
        if self._done:
            outcome = Outcome.SUCCESS
        elif self.failed(world):
            outcome = Outcome.FAILURE
        elif num_steps >= self.max_steps:
            outcome = Outcome.TIMEOUT
        return Verdict(outcome=outcome, rewards=rewards, metrics={"completion": completion, **self.metrics(world)})

    @property
    def max_steps(self) -> int:
        return round(self.config.time_limit_s * self.robot.control_hz)

    @property
    def robot(self) -> RobotSpec:
        assert self._robot is not None, "bind() comes first"
        return self._robot

    def expert(self) -> WaypointExpert:
        if type(self).goal is SimTask.goal:
            raise UsageError(
                f"task '{self.name}' has no expert, who would demonstrate and take over. Set run.demos=0 and operator=none, "
                "demonstrate by hand with operator=browser, or define `goal` in the task"
            )
        return WaypointExpert(self)

    def in_reset_frame(self, vector: Vector) -> Vector:
        """Convert a vector from the base frame to the frame that actions use: of the reset pose, or the base itself."""
        return self.reset_rotation.T @ vector


class WaypointExpert:
    """Moves towards the task's current goal, with any kind of action and optional noise."""

    def __init__(self, task: SimTask) -> None:
        self._task = task
        self._rng = np.random.default_rng(0)
        self._noise = 0.0
        self._pace = 1.0
        self._last_noise: Vector | None = None

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        """`noise` 0: deterministic; 1: noise with a standard deviation of a third of the action limits."""
        self._rng, self._noise, self._last_noise = rng, noise, None
        self._pace = 1.0 - 0.3 * noise * float(rng.random())

    def act(self, observation: Observation) -> Array:
        task, world = self._task, self._task.world
        goal = task.goal(world)
        if task.robot.action_kind == "joint_target":
            return self._joint_target(goal)
        _, high = task.robot.action.bounds
        position, quat = world.tcp_pose()
        delta = np.concatenate(
            (
                task.in_reset_frame(goal.position - position),
                task.in_reset_frame(quat_to_rotvec(quat_multiply(goal.quat, quat_conjugate(quat)))),
            )
        )
        limit = high[:6].astype(np.float64) * goal.speed * self._pace
        # scale each triple as a whole, so that the path stays straight at a limit
        for part in (slice(0, 3), slice(3, 6)):
            excess = float(np.max(np.abs(delta[part]) / limit[part]))
            delta[part] /= max(excess, 1.0)
        delta += self._noise_sample(6) * (0.33 * self._noise) * limit
        return self._in_limits(delta, goal)

    def _joint_target(self, goal: Goal) -> Array:
        world = self._task.world
        position, _ = world.tcp_pose()
        step = goal.position - position
        reach = 0.02 * goal.speed * self._pace
        step *= min(1.0, reach / max(float(np.linalg.norm(step)), 1e-9))
        found = world.kinematics.solve(
            position=position + step, quat=goal.quat, start=world.joint_positions(), max_iterations=20
        )
        # add the remaining servo error, so that the push grows up to a bound when friction or a wall stops the arm
        push = np.clip(world.joint_targets() - world.joint_positions(), -_MAX_PUSH_RAD, _MAX_PUSH_RAD)
        noise = self._noise_sample(len(push)) * (0.01 * self._noise * goal.speed)
        joints = found.joints + push + noise
        return self._in_limits(joints, goal)

    def _noise_sample(self, num_axes: int) -> Vector:
        """Noise with standard deviation 1 on each axis, correlated over `noise_correlation_s`."""
        fresh: Vector = self._rng.normal(0.0, 1.0, num_axes)
        noise_correlation_s = self._task.config.noise_correlation_s
        if self._last_noise is None or noise_correlation_s == 0.0:
            self._last_noise = fresh
        else:
            kept = math.exp(-1.0 / (noise_correlation_s * self._task.robot.control_hz))
            self._last_noise = kept * self._last_noise + math.sqrt(1.0 - kept * kept) * fresh
        return self._last_noise

    def _in_limits(self, motion: Vector, goal: Goal) -> Array:
        low, high = self._task.robot.action.bounds
        action = motion if self._task.fixed_gripper is not None else np.append(motion, goal.gripper)
        return np.asarray(np.clip(action, low, high), np.float32)

    def progress(self, observation: Observation) -> float:
        """The task's completion; 1 only after success."""
        if self._task.done:
            return 1.0
        return min(0.99, self._task.completion(self._task.world))
