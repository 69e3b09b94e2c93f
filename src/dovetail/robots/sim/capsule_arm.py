"""Simple arms for emulators: capsules, and a position servo at each joint.

    arm = CapsuleArm((Link(joint="shoulder", ...),), pose=np.zeros(1), bandwidth=20.0)
    arm.step(targets)            # 2 ms
    arm.position                 # follows the targets with a lag, sags under its weight, ends at its stops

A servo is a critically damped spring with a limited torque. Links do not touch each other or the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import numpy.typing as npt

__all__ = ["CapsuleArm", "Link", "Vector"]

Vector = npt.NDArray[np.float64]
_Point = tuple[float, float, float]

_DOCUMENT = """
<mujoco>
  <compiler angle="radian" autolimits="true" inertiafromgeom="true"/>
  <option timestep="{timestep_s}" integrator="implicitfast" gravity="0 0 {gravity}"/>
  <visual><headlight ambient="0.6 0.6 0.6" diffuse="0.4 0.4 0.4" specular="0.1 0.1 0.1"/></visual>
  <default>
    <geom type="capsule" contype="0" conaffinity="0" rgba="0.93 0.63 0.20 1"/>
    <joint solreflimit="0.004 1" solimplimit="0.99 0.999 0.001"/>
  </default>
  <worldbody>
    <geom type="plane" size="2 2 0.1" rgba="0.85 0.87 0.90 1"/>
    <body name="middle" pos="{middle}"/>
    <camera name="front" pos="{eye}" mode="targetbody" target="middle" fovy="45"/>
    {bodies}
  </worldbody>
  <actuator>{servos}</actuator>
</mujoco>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A capsule and the joint at its root. Other links are attached to it. At 0 rad the frames of all links are parallel."""

    joint: str
    at: _Point  # of the joint, from the joint of the link that it is attached to, in m
    axis: _Point
    to: _Point  # the other end of the capsule, in m
    mass_kg: float
    stops: tuple[float, float] | None  # mechanical, in rad; None: it turns without an end
    max_torque: float  # of the servo, in Nm
    armature: float  # inertia of motor and gears at the joint, in kg m^2
    damping: float = 0.0  # of motor and gears, in Nm s/rad; it acts without power, too
    radius: float = 0.02  # in m
    links: tuple[Link, ...] = ()


class CapsuleArm:
    """Arms and hands with a joint for each link: an outer link comes after the one that it is attached to."""

    TIMESTEP_S = 0.002

    def __init__(
        self,
        links: Sequence[Link],
        *,
        pose: Vector,
        bandwidth: float,
        weightless: float = 0.0,
        middle: _Point = (0.0, 0.0, 0.0),
        eye: _Point = (1.0, 1.0, 1.0),
    ) -> None:
        """`bandwidth`: of the servos in rad/s. `weightless`: the part of gravity that does not act, or is compensated.
        `eye` and `middle`: where the camera `front` is, and what it looks at."""
        joints = list(_all_links(links))
        document = _DOCUMENT.format(
            timestep_s=self.TIMESTEP_S,
            gravity=-9.81 * (1.0 - weightless),
            middle=_text(middle),
            eye=_text(eye),
            bodies="".join(map(_body, links)),
            servos="".join(
                f'<position joint="{link.joint}" kp="1" forcerange="{-link.max_torque} {link.max_torque}"/>'
                for link in joints
            ),
        )
        self.joints = tuple(link.joint for link in joints)
        self.model = model = mujoco.MjModel.from_xml_string(document)
        self.data = mujoco.MjData(model)
        inertia = np.array(model.dof_M0)
        self._stiffness = bandwidth**2 * inertia
        self._servo_damping = np.maximum(2.0 * bandwidth * inertia - model.dof_damping, 0.0)
        self._has_power = np.zeros(len(joints), np.bool_)
        self.switch(np.ones(len(joints), np.bool_))
        self.place(range(len(joints)), pose)

    @property
    def position(self) -> Vector:
        """Of all joints, in rad."""
        return np.array(self.data.qpos)

    @property
    def speed(self) -> Vector:
        """In rad/s."""
        return np.array(self.data.qvel)

    @property
    def torque(self) -> Vector:
        """Of the servos in the last step, in Nm."""
        return np.array(self.data.actuator_force)

    def step(self, targets: Vector) -> None:
        """One time step."""
        self.data.ctrl[:] = targets
        mujoco.mj_step(self.model, self.data)

    def switch(self, has_power: npt.NDArray[np.bool_]) -> None:
        """Which servos have power. The others let their joints fall."""
        if (has_power == self._has_power).all():
            return
        self._has_power = has_power
        self.model.actuator_gainprm[:, 0] = self._stiffness * has_power
        self.model.actuator_biasprm[:, 1] = -self._stiffness * has_power
        self.model.actuator_biasprm[:, 2] = -self._servo_damping * has_power

    def place(self, joints: Sequence[int], positions: Vector) -> None:
        """Put some joints at these positions, at rest, as a person does by hand."""
        at = list(joints)
        self.data.qpos[at] = positions
        self.data.qvel[at] = 0.0
        mujoco.mj_forward(self.model, self.data)


def _all_links(links: Sequence[Link]) -> Iterator[Link]:
    for link in links:
        yield link
        yield from _all_links(link.links)


def _body(link: Link) -> str:
    stops = "" if link.stops is None else f'range="{_text(link.stops)}"'
    return (
        f'<body pos="{_text(link.at)}">'
        f'<joint name="{link.joint}" axis="{_text(link.axis)}" {stops} armature="{link.armature}" '
        f'damping="{link.damping}"/>'
        f'<geom fromto="0 0 0 {_text(link.to)}" size="{link.radius}" mass="{link.mass_kg}"/>'
        f"{''.join(map(_body, link.links))}</body>"
    )


def _text(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)
