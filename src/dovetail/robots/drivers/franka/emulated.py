"""A Franka arm of `dovetail emulate franka`, in the scene of a simulated task.

State and motion go through the same HTTP endpoints as on a real arm. What a real robot has by other means goes through the
emulator's own endpoints: the reset of the scene, the poses of its objects, and simulated time. The driver mirrors the
emulator's positions in a world of its own. So the task finds there its success, its state sensor and its expert, as with
`robot: sim`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.drivers.franka.driver import FrankaRobot, franka_spec
from dovetail.robots.drivers.franka.emulator_token import HEADER, read_token
from dovetail.robots.drivers.franka.settings import EmulatedFrankaConfig
from dovetail.robots.sim.arm import ARMS
from dovetail.robots.sim.robot import SceneTask
from dovetail.robots.sim.world import World

__all__ = ["EmulatedFranka"]

_TIMEOUT_S = 20.0  # simulated time may pass slowly
_RESET_S = 1.5  # duration of a reset in real time: the guard would take a faster jump for a runaway arm


class _MirroredWorld(World):
    """A world whose positions and time are those of the emulator."""

    mirrored_ns = 0

    @property
    def time_ns(self) -> int:
        return self.mirrored_ns


class EmulatedFranka(FrankaRobot):
    """See the module. With `simulated_time`, the object is a SimulatedRobot."""

    Config: ClassVar[type[EmulatedFrankaConfig]] = EmulatedFrankaConfig

    def __new__(cls, config: EmulatedFrankaConfig, *, task: SceneTask | None = None) -> EmulatedFranka:
        # What has `advance` is a SimulatedRobot, so an arm in real time must not have it.
        return super().__new__(_LockstepFranka if config.simulated_time else EmulatedFranka)

    def __init__(self, config: EmulatedFrankaConfig, *, task: SceneTask | None = None) -> None:
        if task is None:
            raise UsageError("robot 'franka_emulated' needs a simulated task, e.g. task: peg_insertion")
        if task.fixed_gripper is not None:
            config = config.model_copy(update={"gripper_axis": False})
        super().__init__(config)
        self._emulated, self._task = config, task
        self._emulator = self._arms[0].connection
        self._token: str | None = config.token
        self.world = _MirroredWorld(arm=ARMS["panda"], scene=task)
        self._spec = _with_task_state(franka_spec(config), task)
        task.bind(self.world, robot=self._spec, on_reset=self._place)

    def observe(self) -> Observation:
        self._read_scene()
        observation = super().observe()
        task_state = np.asarray(self._task.read_state(self.world), np.float32)
        return replace(observation, values={**observation.values, "task_state": task_state})

    def send(self, action: Array) -> Array:
        executed = super().send(action)
        self._mirror_equilibrium()
        return executed

    def stop(self) -> None:
        self._find_token()  # an emulator that was never started gets an error that names the command
        super().stop()

    def probe(self) -> Mapping[str, Array]:
        """Positions of everything, from which the report renders the episode."""
        return {"sim_qpos": self.world.data.qpos.copy(), "sim_fixtures": self.world.fixture_poses()}

    def _read_scene(self) -> None:
        answer = self._call("/emulator/state")
        self._check_time(answer)
        try:
            qpos, qvel = np.array(answer["qpos"], np.float64), np.array(answer["qvel"], np.float64)
            time_ns = int(answer["time_ns"])
        except (KeyError, TypeError, ValueError) as error:
            raise RobotError(f"the emulator sent a wrong scene state: {error}") from error
        data = self.world.data
        if qpos.shape != data.qpos.shape or qvel.shape != data.qvel.shape:
            raise RobotError(
                f"the emulator has another scene than task '{type(self._task).__name__}'. Start it with task=NAME"
            )
        data.qpos[:], data.qvel[:] = qpos, qvel
        self.world.mirrored_ns = time_ns
        self.world.forward()

    def _mirror_equilibrium(self) -> None:
        """Experts read the pending motion from the targets of the joint servos."""
        world, equilibrium = self.world, self._arms[0].equilibrium
        joints = world.joint_positions()
        if equilibrium is not None:
            joints = world.kinematics.solve(position=equilibrium[0], quat=equilibrium[1], start=joints).joints
        world.data.ctrl[world.joint_ctrl] = joints

    def _place(self) -> None:
        """The task has placed everything in the mirror: place it so in the emulator."""
        world = self.world
        data = world.data
        self._call(
            "/emulator/reset",
            {
                "qpos": data.qpos.tolist(),
                "qvel": data.qvel.tolist(),
                "act": data.act.tolist(),
                "ctrl": data.ctrl.tolist(),
                "fixtures": world.fixture_poses().tolist(),
            },
        )
        for arm in self._arms:
            arm.forget()
        self._is_held = False
        if not self._emulated.simulated_time:
            time.sleep(_RESET_S)
        self._read_scene()
        self._mirror_equilibrium()

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._emulator.post_json(path, body, timeout_s=_TIMEOUT_S, headers={HEADER: self._find_token()})

    def _find_token(self) -> str:
        if self._token is None:
            self._token = read_token(self._emulated.address)
        return self._token

    def _check_time(self, answer: Mapping[str, Any]) -> None:
        """Whether the emulator's time passes as ours does."""
        expected, found = self._emulated.simulated_time, answer.get("lockstep")
        if found is not expected:
            raise RobotError(
                f"the emulator has lockstep={str(found).lower()}, but robot.simulated_time={str(expected).lower()}. "
                "Start the emulator with the same value"
            )


class _LockstepFranka(EmulatedFranka):
    """Time passes in the emulator only in `advance`."""

    def _now_ns(self) -> int:
        return self.world.mirrored_ns

    def advance(self, duration_ns: int) -> None:
        self._call("/emulator/advance", {"duration_ns": duration_ns})


def _with_task_state(spec: RobotSpec, task: SceneTask) -> RobotSpec:
    names = tuple(task.state_names)
    observation = {**spec.observation, "task_state": ArraySpec(shape=(len(names),), names=names)}
    return replace(spec, observation=observation)
