"""One MuJoCo world: an arm, a table and a task's scene. All access to the physics goes through it.

    world = World(arm=ARMS["panda"], scene=EmptyScene())
    world.reset()
    world.place_arm((0.5, 0.0, 0.2), DOWN, gripper=1.0)
    world.advance(50)
    position, quat = world.tcp_pose()

Joint positions are set at reset only. Between resets, only physics moves things.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core.errors import RobotError, did_you_mean
from dovetail.robots.sim.arm import Arm
from dovetail.robots.sim.kinematics import Kinematics
from dovetail.robots.sim.rotations import Vector, quat_from_matrix, quat_normalize
from dovetail.robots.sim.scene import EmptyScene, Scene, compose

__all__ = ["DOWN", "EmptyScene", "Scene", "World"]

DOWN: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 0.0)
"""The TCP's quaternion when it points straight down with the arm's home yaw."""

_FULL_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS
_PLACE_TOLERANCE_M = 1e-4
_PLACE_TOLERANCE_RAD = 1e-3


class World:
    """The model and its state. Names are those of the arm's and the scene's MJCF, without a prefix."""

    def __init__(self, *, arm: Arm, scene: Scene, timestep_s: float = 0.002) -> None:
        self.arm = arm
        self.scene = scene
        self.kinematics = Kinematics(arm)
        document = compose(arm=arm, scene=scene, timestep_s=timestep_s)
        try:
            model: Any = mujoco.MjModel.from_xml_string(document)
        except ValueError as error:
            line = " ".join(str(error).split())
            raise RobotError(
                f"scene {type(scene).__name__} and arm '{arm.name}' do not compile: {line}"
            ) from error
        self.model: Any = model
        self.data: Any = mujoco.MjData(model)
        self.timestep_ns = round(timestep_s * 1e9)
        self._num_substeps = 0
        self._tcp = int(model.site("tcp").id)
        joints = [model.joint(name) for name in arm.joint_names]
        self.joint_qpos: NDArray[np.intp] = np.array([int(joint.qposadr[0]) for joint in joints])
        self.joint_dof: NDArray[np.intp] = np.array([int(joint.dofadr[0]) for joint in joints])
        self.joint_ctrl: NDArray[np.intp] = np.array([int(model.actuator(name).id) for name in arm.joint_names])
        self.joint_act: NDArray[np.intp] = model.actuator_actadr[self.joint_ctrl].astype(np.intp)
        self.gripper_ctrl = int(model.actuator("gripper").id)
        self._gripper_act = int(model.actuator_actadr[self.gripper_ctrl])
        fingers = [model.joint(name) for name in arm.finger_joints]
        self._finger_qpos: NDArray[np.intp] = np.array([int(joint.qposadr[0]) for joint in fingers])
        self._finger_qvel: NDArray[np.intp] = np.array([int(joint.dofadr[0]) for joint in fingers])
        self.fixtures = _fixtures(model, arm_body=int(model.jnt_bodyid[joints[0].id]))
        self._body_ids: dict[str, int] = {}
        self._geom_ids: dict[str, int] = {}
        self._twist = np.zeros(6)
        self._state_size = int(mujoco.mj_stateSize(model, _FULL_PHYSICS))
        self.reset()

    # -- time ----------------------------------------------------------------------------------------------

    @property
    def time_ns(self) -> int:
        """Simulated time since construction. A reset does not change it."""
        return self._num_substeps * self.timestep_ns

    def advance(self, num_substeps: int) -> None:
        """Run physics, then update poses and velocities. Contacts and forces are those of the last step.

        The update changes nothing that a step reads, so the result equals `mj_step` bit for bit.
        """
        if num_substeps <= 0:
            return
        mujoco.mj_step(self.model, self.data, num_substeps)
        self._num_substeps += num_substeps
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_comVel(self.model, self.data)
        if (
            not math.isfinite(float(self.data.qacc[0]))
            or self.data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number
        ):
            raise RobotError(
                "the simulation diverged: the scene's contacts or masses are too extreme for its time step"
            )

    def forward(self) -> None:
        """Recompute everything that depends on positions and velocities. Time does not advance."""
        mujoco.mj_forward(self.model, self.data)

    # -- reset ---------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Restore the scene's initial state, with the arm at home and the gripper open, everything at rest."""
        mujoco.mj_resetData(self.model, self.data)
        self._write_arm(np.array(self.arm.home), 1.0)
        self.forward()

    def place_arm(self, position: ArrayLike, quat: ArrayLike = DOWN, *, gripper: float = 1.0) -> None:
        """Reset only: put the TCP and its servo targets at a pose, at rest. `gripper`: 0 closed, 1 open."""
        target, turn = np.asarray(position, dtype=np.float64), quat_normalize(quat)
        home = np.array(self.arm.home)
        best = None
        for attempt in range(8):
            # further attempts start from random joints; a fixed seed keeps resets reproducible
            spread = np.random.default_rng(attempt).uniform(-0.5, 0.5, home.size) if attempt else 0.0
            found = self.kinematics.solve(
                position=target, quat=turn, start=home + spread, max_iterations=60, home_gain=0.02
            )
            if best is None or found.position_error_m < best.position_error_m:
                best = found
            if found.position_error_m <= _PLACE_TOLERANCE_M and found.rotation_error_rad <= _PLACE_TOLERANCE_RAD:
                self._write_arm(found.joints, gripper)
                self.forward()
                return
        assert best is not None
        raise RobotError(
            f"arm '{self.arm.name}' cannot reach position {np.round(target, 4).tolist()} with quaternion "
            f"{np.round(turn, 4).tolist()}: the nearest solution misses by {best.position_error_m * 1e3:.1f} mm "
            f"and {best.rotation_error_rad:.3f} rad"
        )

    def place_joints(self, joints: ArrayLike, *, gripper: float = 1.0) -> None:
        """Reset only: put the joints and their servo targets at these angles, at rest."""
        wanted = np.asarray(joints, dtype=np.float64)
        if wanted.shape != (self.arm.num_joints,):
            raise RobotError(
                f"arm '{self.arm.name}' has {self.arm.num_joints} joints, but {wanted.shape} were given"
            )
        self._write_arm(wanted, gripper)
        self.forward()

    def set_free_body(self, name: str, position: ArrayLike, quat: ArrayLike = (1.0, 0.0, 0.0, 0.0)) -> None:
        """Reset only: put a body with a free joint at a pose, at rest. Call `forward()` after the last."""
        body = self.model.body(self.body_id(name))
        joint = int(body.jntadr[0])
        if joint < 0 or self.model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE:
            raise RobotError(f"body '{name}' has no free joint: only free bodies can be placed")
        qpos, dof = int(self.model.jnt_qposadr[joint]), int(self.model.jnt_dofadr[joint])
        self.data.qpos[qpos : qpos + 3] = np.asarray(position, dtype=np.float64)
        self.data.qpos[qpos + 3 : qpos + 7] = quat_normalize(quat)
        self.data.qvel[dof : dof + 6] = 0.0

    def _write_arm(self, joints: Vector, gripper: float) -> None:
        data = self.data
        finger = min(max(gripper, 0.0), 1.0) * 0.5 * self.arm.max_opening_m
        data.qpos[self.joint_qpos] = joints
        data.qvel[self.joint_dof] = 0.0
        data.ctrl[self.joint_ctrl] = joints
        data.act[self.joint_act] = joints
        data.qpos[self._finger_qpos] = finger
        data.qvel[self._finger_qvel] = 0.0
        data.ctrl[self.gripper_ctrl] = finger
        data.act[self._gripper_act] = finger
        data.qacc_warmstart[:] = 0.0

    # -- poses ---------------------------------------------------------------------------------------------

    def tcp_pose(self) -> tuple[Vector, Vector]:
        """Position (m) and quaternion (w, x, y, z) of the TCP in the base frame, which is the world's.

        Returns the quaternion that is nearer to DOWN. The usual choice, w >= 0, would flip its sign at random for a
        gripper that points down.
        """
        quat = quat_from_matrix(self.data.site_xmat[self._tcp])
        return self.data.site_xpos[self._tcp].copy(), -quat if quat[1] < 0.0 else quat

    def tcp_twist(self) -> Vector:
        """[6] linear (m/s), then angular (rad/s) velocity of the TCP in the base frame."""
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_SITE, self._tcp, self._twist, False)
        # MuJoCo puts the angular part first, in world axes here
        return np.concatenate((self._twist[3:], self._twist[:3]))

    def joint_positions(self) -> Vector:
        return np.asarray(self.data.qpos[self.joint_qpos])

    def joint_velocities(self) -> Vector:
        return np.asarray(self.data.qvel[self.joint_dof])

    def joint_targets(self) -> Vector:
        """Targets of the joint servos."""
        return np.asarray(self.data.ctrl[self.joint_ctrl])

    def gripper_opening(self) -> float:
        """Distance between the pads in meters."""
        return float(self.data.qpos[self._finger_qpos].sum())

    def body_pose(self, name: str) -> tuple[Vector, Vector]:
        """Position and quaternion (w, x, y, z) of a body's frame."""
        body = self.body_id(name)
        return self.data.xpos[body].copy(), self.data.xquat[body].copy()

    def fixture_poses(self) -> Vector:
        """[k, 7] poses of `fixtures` relative to their parents, which a task may change in the model at reset."""
        return np.hstack((self.model.body_pos[self.fixtures], self.model.body_quat[self.fixtures]))

    def body_id(self, name: str) -> int:
        return self._lookup(self._body_ids, name, mujoco.mjtObj.mjOBJ_BODY, self.model.nbody, "body")

    def geom_id(self, name: str) -> int:
        return self._lookup(self._geom_ids, name, mujoco.mjtObj.mjOBJ_GEOM, self.model.ngeom, "geom")

    def _lookup(self, known: dict[str, int], name: str, kind: Any, count: int, what: str) -> int:
        found = known.get(name)
        if found is None:
            found = int(mujoco.mj_name2id(self.model, kind, name))
            if found < 0:
                names = [mujoco.mj_id2name(self.model, kind, i) for i in range(count)]
                hint = did_you_mean(name, [n for n in names if n])
                raise RobotError(f"there is no {what} '{name}' in this world.{hint}")
            known[name] = found
        return found

    # -- contact -------------------------------------------------------------------------------------------

    def in_contact(self, geom_a: str, geom_b: str | None = None) -> bool:
        """Whether two geoms touch, or whether one geom touches anything."""
        return self._num_contacts(geom_a, geom_b) > 0

    def contact_force(self, geom_a: str, geom_b: str | None = None) -> float:
        """Sum of the normal forces between two geoms, or on one geom, in newtons."""
        total, wrench = 0.0, np.zeros(6)
        for index in self._contacts(geom_a, geom_b):
            mujoco.mj_contactForce(self.model, self.data, index, wrench)
            total += abs(float(wrench[0]))
        return total

    def grasping(self, geom: str) -> bool:
        """Whether both pads touch the geom."""
        left, right = self.arm.pads
        return self.in_contact(left, geom) and self.in_contact(right, geom)

    def _num_contacts(self, geom_a: str, geom_b: str | None) -> int:
        return len(self._contacts(geom_a, geom_b))

    def _contacts(self, geom_a: str, geom_b: str | None) -> Sequence[int]:
        if not self.data.ncon:
            return ()
        pairs = self.data.contact.geom  # [ncon, 2]
        a = self.geom_id(geom_a)
        hit = (pairs == a).any(axis=1)
        if geom_b is not None:
            hit &= (pairs == self.geom_id(geom_b)).any(axis=1)
        return [int(i) for i in np.flatnonzero(hit & (self.data.contact.dist <= 0.0))]

    # -- saved states --------------------------------------------------------------------------------------

    def save_state(self) -> Mapping[str, Vector]:
        """The complete physics state: positions, velocities, activations, warm start, servo targets."""
        state = np.empty(self._state_size)
        mujoco.mj_getState(self.model, self.data, state, _FULL_PHYSICS)
        return {
            "state": state,
            "ctrl": self.data.ctrl.copy(),
            "warmstart": self.data.qacc_warmstart.copy(),
        }

    def restore_state(self, saved: Mapping[str, Vector]) -> None:
        mujoco.mj_setState(self.model, self.data, saved["state"], _FULL_PHYSICS)
        self.data.ctrl[:] = saved["ctrl"]
        self.forward()
        self.data.qacc_warmstart[:] = saved["warmstart"]


def _fixtures(model: Any, *, arm_body: int) -> NDArray[np.intp]:
    """Bodies whose poses are part of the model: all except the world, the arm and free bodies."""
    roots = model.body_rootid
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    bodies: NDArray[np.intp] = np.arange(1, model.nbody)
    movable: NDArray[np.bool_] = (roots[bodies] != roots[arm_body]) & ~np.isin(bodies, free)
    return bodies[movable]
