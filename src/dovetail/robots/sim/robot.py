"""A simulated arm with the same contract as a real one.

robot = SimRobot(SimRobotConfig(arm="panda"), task=my_task)
clock = SimulatedClock(); clock.on_advance(robot.advance)
robot.world.reset(); robot.reset_reference()
executed = robot.send(action)        # sets servo targets, passes no time
clock.sleep_until(next_tick_ns)      # physics runs here
observation = robot.observe()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.core.abilities import BindsReset
from dovetail.core.errors import RobotError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.sim.arm import ARMS
from dovetail.robots.sim.cameras import Cameras, SimCamera
from dovetail.robots.sim.control import CartesianDelta, Controller, JointTarget
from dovetail.robots.sim.world import EmptyScene, Scene, World
from dovetail.robots.sim_settings import SimRobotConfig

__all__ = ["SceneTask", "SimRobot", "SimRobotConfig"]


@runtime_checkable
class SceneTask(Scene, Protocol):
    """A task with its own scene. `bind` gives it the world that was built from the scene."""

    @property
    def fixed_gripper(self) -> float | None:
        """Constant gripper command; the action then has no gripper axis. None: the action has one."""

    def bind(self, world: World, *, robot: RobotSpec, on_reset: Callable[[], None]) -> None: ...


class SimRobot:
    """An arm in a task's scene. Tasks reset it through `world`, then call `reset_reference`. A task without a scene gets an
    empty table."""

    Config = SimRobotConfig

    def __init__(
        self,
        config: SimRobotConfig | None = None,
        *,
        task: SceneTask | BindsReset | None = None,
        scene: Scene | None = None,
    ) -> None:
        self.config = config = config or SimRobotConfig()
        arm = ARMS[config.arm]
        shown: Scene = task if isinstance(task, SceneTask) else scene or EmptyScene()
        self.world = World(arm=arm, scene=shown, timestep_s=config.timestep_s)
        self._fixed_gripper = task.fixed_gripper if isinstance(task, SceneTask) else None
        self.controller = _controller(config)
        width, height = config.image_size
        shared = Cameras(world=self.world, names=config.images, width=width, height=height)
        self.cameras = tuple(SimCamera(shared, world=self.world, name=name) for name in shared.names)
        self._spec = self._make_spec()
        self._leftover_ns = 0
        self._stopped = False
        self._next_buffer: Callable[[str], Array] | None = None
        self._viewer: Any = None
        self.controller.reset(self.world)
        if isinstance(task, SceneTask):
            task.bind(self.world, robot=self._spec, on_reset=self.reset_reference)
        elif isinstance(task, BindsReset):
            task.bind_reset(self.reset_reference)

    @property
    def spec(self) -> RobotSpec:
        return self._spec

    def observe(self) -> Observation:
        world = self.world
        position, quat = world.tcp_pose()
        values: dict[str, Array] = {
            "joint_pos": world.joint_positions().astype(np.float32),
            "joint_vel": world.joint_velocities().astype(np.float32),
            "ee_pose": np.concatenate((position, quat)).astype(np.float32),
            "ee_twist": world.tcp_twist().astype(np.float32),
            "ee_error": self.controller.reference_error(world).astype(np.float32),
            "gripper": np.array(
                (world.gripper_opening() / world.arm.max_opening_m, self.controller.gripper), np.float32
            ),
            "task_state": np.asarray(world.scene.read_state(world), np.float32),
        }
        for camera in self.cameras:
            camera.start()
            images = {key: self._image(key, spec) for key, spec in camera.spec.items()}
            camera.read(images)
            values.update(images)
        return Observation(time_ns=world.time_ns, values=values)

    def send(self, action: Array) -> Array:
        """Set the servo targets for one tick and return the executed action. Simulated time does not advance."""
        if self._fixed_gripper is not None:
            action = np.append(action, np.float32(self._fixed_gripper))
        executed = self.controller.command(self.world, action)
        self._stopped = False
        return executed if self._fixed_gripper is None else executed[:-1]

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        """Render into the arrays of `next_buffer(camera)` from now on."""
        self._next_buffer = next_buffer

    def stop(self) -> None:
        """Hold the current pose. A second call changes nothing, so that the arm does not drift."""
        if not self._stopped:
            self.controller.hold(self.world)
            self._stopped = True

    def advance(self, duration_ns: int) -> None:
        """Advance simulated time. A remainder below one physics step is kept for the next call."""
        num_substeps, self._leftover_ns = divmod(duration_ns + self._leftover_ns, self.world.timestep_ns)
        self.world.advance(int(num_substeps))
        if self.config.viewer:
            self._show()

    def reset_reference(self) -> None:
        """Call after a task has reset the world. This pose becomes the reference and the action frame."""
        self.controller.reset(self.world)
        self._stopped = False
        if self.config.viewer:
            self._show()

    def probe(self) -> Mapping[str, Array]:
        """Positions of everything, recorded with each step, from which `EpisodeRenderer` renders the episode later.

        float64, so that later images equal the live ones bit for bit.
        """
        return {"sim_qpos": self.world.data.qpos.copy(), "sim_fixtures": self.world.fixture_poses()}

    def close(self) -> None:
        self.stop()
        for camera in self.cameras:
            camera.close()
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _show(self) -> None:
        if self._viewer is None:
            self._viewer = _open_viewer(self.world)
        if self._viewer.is_running():  # the window may have been closed
            self._viewer.sync()

    def _image(self, key: str, spec: ArraySpec) -> Array:
        return self._next_buffer(key) if self._next_buffer else np.empty(spec.shape, spec.dtype)

    def _make_spec(self) -> RobotSpec:
        arm, controller = self.world.arm, self.controller
        num_axes = len(controller.names) - (self._fixed_gripper is not None)  # the gripper is the last axis
        state_names = tuple(self.world.scene.state_names)
        axes = ("x", "y", "z", "rx", "ry", "rz")
        observation = {
            "joint_pos": ArraySpec(shape=(arm.num_joints,), names=arm.joint_names),
            "joint_vel": ArraySpec(shape=(arm.num_joints,), names=arm.joint_names),
            "ee_pose": ArraySpec(shape=(7,), names=("x", "y", "z", "qw", "qx", "qy", "qz")),
            "ee_twist": ArraySpec(shape=(6,), names=tuple(f"v{axis}" for axis in axes)),
            "ee_error": ArraySpec(shape=(6,), names=tuple(f"e{axis}" for axis in axes)),
            "gripper": ArraySpec(shape=(2,), names=("opening", "command")),
            "task_state": ArraySpec(shape=(len(state_names),), names=state_names),
        }
        for camera in self.cameras:
            observation.update(camera.spec)
        return RobotSpec(
            name=f"sim_{arm.name}",
            embodiment=arm.embodiment,
            observation=observation,
            action=ArraySpec(
                shape=(num_axes,),
                names=controller.names[:num_axes],
                low=controller.low[:num_axes],
                high=controller.high[:num_axes],
            ),
            action_kind="ee_delta" if self.config.action == "ee_delta" else "joint_target",
            control_hz=self.config.control_hz,
        )


def _controller(config: SimRobotConfig) -> Controller:
    if config.action == "ee_delta":
        return CartesianDelta(
            max_step_m=config.max_step_m,
            max_turn_rad=config.max_turn_rad,
            max_lead_m=config.max_lead_m,
            max_lead_rad=config.max_lead_rad,
            period_s=1.0 / config.control_hz,
        )
    return JointTarget(arm=ARMS[config.arm])


def _open_viewer(world: World) -> Any:
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise RobotError("robot.viewer=true needs a display, but there is none. Set robot.viewer=false")
    from mujoco import viewer  # imported only here: it needs a window system

    return viewer.launch_passive(world.model, world.data, show_left_ui=False, show_right_ui=False)
