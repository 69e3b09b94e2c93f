"""What the simulated tasks share: reset, verdicts with a hold time, time limits, and how an expert moves.

A task says what its scene is (`xml`), how it starts (`place`), what is true in it (`solved`, `failed`,
`completion`, `read_state`) and where an expert would go next (`goal`). The rest is here, once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dovetail.config.model import Config
from dovetail.core.contracts import Robot
from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec, TaskSpec
from dovetail.core.types import Array, Observation, Outcome, Verdict
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.rotations import quat_conjugate, quat_multiply, quat_to_matrix, quat_to_rotvec
from dovetail.robots.sim.world import World

__all__ = ["Goal", "SimTask", "SimTaskConfig", "WaypointExpert"]

Vector = NDArray[np.float64]

_MAX_PUSH_RAD = 0.03


class SimTaskConfig(Config):
    BASIC: ClassVar[Collection[str]] = ("time_limit_s", "reward")

    reward: Literal["sparse", "dense"] = "sparse"
    """sparse: 1 at success. dense: progress made in each step, plus 1 at success."""
    time_limit_s: float = Field(default=10.0, gt=0.0)
    """An episode that takes longer is truncated, which is not a failure."""
    hold_s: float = Field(default=0.2, ge=0.0)
    """How long the success predicate must stay true."""
    tremor_s: float = Field(default=0.0, ge=0.0)
    """How long a noisy expert's hand keeps to a deviation, as a person's does; 0: each tick draws its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Where an expert wants the TCP next, in the base frame, how fast, and with what grip."""

    position: Vector
    quat: Vector
    gripper: float  # 0 closed, 1 open
    speed: float = 1.0  # share of the action limits that may be used


class SimTask(ABC):
    """A Task and its Scene. One instance belongs to one world, which `bind` gives it."""

    name: ClassVar[str]
    prompt: ClassVar[str]
    arms: ClassVar[tuple[str, ...]] = ("franka_panda", "arx_x5")
    table: ClassVar[bool] = True
    fixed_gripper: ClassVar[float | None] = None
    """For a task done with a tool in hand or a closed fist: the gripper stays so, and is no part of the action."""
    state_names: ClassVar[tuple[str, ...]]

    def __init__(self, config: SimTaskConfig) -> None:
        self.config = config
        self.reset_rotation: Vector = np.eye(3)  # of the TCP at reset: actions and state are expressed in it
        self._world: World | None = None
        self._robot: RobotSpec | None = None
        self._on_reset: Callable[[], None] = lambda: None
        self._true_since_ns: int | None = None
        self._done = False
        self._last_potential = 0.0

    # ---- what a task says of itself

    @abstractmethod
    def xml(self, arm: Arm) -> str:
        """The scene as MJCF; see `Scene`."""

    @abstractmethod
    def place(self, world: World, rng: np.random.Generator) -> None:
        """Put the arm and the things where an episode starts. May let physics settle."""

    @abstractmethod
    def solved(self, world: World) -> bool:
        """The success predicate, from simulator state, at this moment."""

    @abstractmethod
    def completion(self, world: World) -> float:
        """How far along, 0 to 1."""

    def potential(self, world: World) -> float:
        """What a dense reward is the difference of: how far along, and below 0 how far from where it began."""
        return self.completion(world)

    @abstractmethod
    def goal(self, world: World) -> Goal:
        """Where an expert would go from this very state: feedback, not a script, so that it can take over anywhere."""

    @abstractmethod
    def read_state(self, world: World) -> NDArray[np.float32]:
        """The task's state sensor, one number per name in `state_names`, in the frame of the reset pose."""

    def failed(self, world: World) -> bool:
        """Whether nothing can be saved any more (say, the object fell off the table)."""
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
        """Whether success has been declared in this episode."""
        return self._done

    def bind(self, world: World, *, robot: RobotSpec, on_reset: Callable[[], None]) -> None:
        """Called once by the robot that this task's world belongs to; `on_reset` re-anchors its controller."""
        self._world, self._robot, self._on_reset = world, robot, on_reset

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        world = self.world
        world.reset()
        self.place(world, rng)
        world.forward()
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
        return WaypointExpert(self)

    def in_reset_frame(self, vector: Vector) -> Vector:
        """A vector of the base frame in the frame of the reset pose, which is that of the actions."""
        return self.reset_rotation.T @ vector


class WaypointExpert:
    """Moves towards the task's goal of the moment, in whatever actions the robot takes. Noisy on request."""

    def __init__(self, task: SimTask) -> None:
        self._task = task
        self._rng = np.random.default_rng(0)
        self._noise = 0.0
        self._pace = 1.0
        self._drift: Vector | None = None

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None:
        """`noise` 0: always the same; 1: a hand that trembles by a third of the action limits."""
        self._rng, self._noise, self._drift = rng, noise, None
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
        # scale each triple as a whole, so that the path stays straight where a limit binds
        for part in (slice(0, 3), slice(3, 6)):
            excess = float(np.max(np.abs(delta[part]) / limit[part]))
            delta[part] /= max(excess, 1.0)
        delta += self._tremble(6) * (0.33 * self._noise) * limit
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
        # on top of what the servos still lack: where friction or a wall holds the arm, the push grows, up to a bound
        push = np.clip(world.joint_targets() - world.joint_positions(), -_MAX_PUSH_RAD, _MAX_PUSH_RAD)
        tremble = self._tremble(len(push)) * (0.01 * self._noise * goal.speed)
        joints = found.joints + push + tremble
        return self._in_limits(joints, goal)

    def _tremble(self, num_axes: int) -> Vector:
        """Of standard deviation 1 on each axis, fading into another within `tremor_s`."""
        fresh: Vector = self._rng.normal(0.0, 1.0, num_axes)
        tremor_s = self._task.config.tremor_s
        if self._drift is None or tremor_s == 0.0:
            self._drift = fresh
        else:
            kept = math.exp(-1.0 / (tremor_s * self._task.robot.control_hz))
            self._drift = kept * self._drift + math.sqrt(1.0 - kept * kept) * fresh
        return self._drift

    def _in_limits(self, motion: Vector, goal: Goal) -> Array:
        low, high = self._task.robot.action.bounds
        action = motion if self._task.fixed_gripper is not None else np.append(motion, goal.gripper)
        return np.asarray(np.clip(action, low, high), np.float32)

    def progress(self, observation: Observation) -> float:
        """The task's completion; 1 only once success has been declared."""
        if self._task.done:
            return 1.0
        return min(0.99, self._task.completion(self._task.world))
