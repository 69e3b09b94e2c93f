"""A task's scene, and how it is merged with the arm into one MJCF document."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import RobotError
from dovetail.robots.sim.arm import Arm

if TYPE_CHECKING:
    from dovetail.robots.sim.world import World

__all__ = ["EmptyScene", "Scene", "compose"]


class Scene(Protocol):
    """The objects of a task. The arm's base is at the origin; the table's top is z = 0."""

    @property
    def table(self) -> bool:
        """Whether to add the standard table."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the values of `read_state`."""

    def xml(self, arm: Arm) -> str:
        """An MJCF document, `<mujoco>...</mujoco>`: worldbody, assets, contacts, sensors, defaults.

        Use named default classes: an unnamed `<default>` would change the arm too. A camera `front` replaces the
        standard one. `<option>`, `<compiler>` and `<visual>` are not allowed.
        """

    def read_state(self, world: World) -> NDArray[np.float32]:
        """The values of the task's state sensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyScene:
    """A table, with optional MJCF for the worldbody."""

    body: str = ""
    table: bool = True
    state_names: tuple[str, ...] = ()

    def xml(self, arm: Arm) -> str:
        return f"<mujoco><worldbody>{self.body}</worldbody></mujoco>"

    def read_state(self, world: World) -> NDArray[np.float32]:
        return np.zeros(0, np.float32)


_RESERVED = ("option", "compiler", "visual", "size", "statistic")

_BASE = """
<mujoco model="dovetail">
  <compiler angle="radian" autolimits="true" inertiafromgeom="true"/>
  <!-- elliptic cones with a high impratio hold a grasp without creep; 2 ms is stable with the servos'
       implicit damping; Newton mostly needs one iteration, but with a cap of 20 a grasped box was thrown by
       the unconverged steps of the impact -->
  <option timestep="{timestep_s}" integrator="implicitfast" cone="elliptic" impratio="10" iterations="100"
          ls_iterations="50"/>
  <visual>
    <headlight ambient="0.60 0.60 0.60" diffuse="0.42 0.42 0.42" specular="0.12 0.12 0.12"/>
    <quality offsamples="0" shadowsize="0"/>
    <map znear="0.01" zfar="12"/>
    <global azimuth="140" elevation="-25"/>
  </visual>
  <statistic center="{center}" extent="{extent}"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.94 0.95 0.97" rgb2="0.78 0.81 0.85"
             width="32" height="192"/>
    <!-- no specular: on so large a face the headlight's highlight shows its polygons -->
    <material name="table" rgba="0.90 0.91 0.92 1" specular="0" shininess="0"/>
  </asset>
  <worldbody>
    {table}
    {camera}
  </worldbody>
</mujoco>
"""

_TABLE = """<geom name="table" type="box" pos="0.33 0 -0.02" size="0.52 0.6 0.02" material="table"
    friction="0.8 0.005 0.0001" solref="0.008 1" solimp="0.95 0.99 0.001"/>"""


def compose(*, arm: Arm, scene: Scene, timestep_s: float) -> str:
    """One document: base, arm, scene. The arm's joints come first."""
    wanted = _parse(scene.xml(arm), what=f"scene {type(scene).__name__}")
    for section in _RESERVED:
        if wanted.find(section) is not None:
            raise RobotError(f"scene {type(scene).__name__} sets <{section}>, which scenes may not set: remove it")
    has_front = any(camera.get("name") == "front" for camera in wanted.iter("camera"))
    base = _BASE.format(
        timestep_s=timestep_s,
        center=" ".join(str(v) for v in arm.workspace_center),
        extent=arm.reach_m,
        table=_TABLE if scene.table else "",
        camera="" if has_front else _front_camera(arm),
    )
    merged = _parse(base, what="the base")
    for part in (_parse(arm.xml(), what=f"arm '{arm.name}'"), wanted):
        # MJCF allows a section to occur several times, so merging is appending
        merged.extend(list(part))
    return ET.tostring(merged, encoding="unicode")


def _front_camera(arm: Arm) -> str:
    """In front of the arm, a little to its left and above, looking back at the workspace."""
    x, y, z = arm.workspace_center
    eye = np.array((x + 0.80 * arm.reach_m, y + 0.95 * arm.reach_m, z + 0.60 * arm.reach_m))
    towards = np.array((x - 0.10 * arm.reach_m, y, z + 0.10 * arm.reach_m)) - eye
    right = np.cross(towards, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    up = np.cross(right, towards / np.linalg.norm(towards))
    axes = " ".join(f"{v:.5f}" for v in (*right, *up))
    where = " ".join(f"{v:.5f}" for v in eye)
    return f'<camera name="front" pos="{where}" xyaxes="{axes}" fovy="42"/>'


def _parse(text: str, *, what: str) -> ET.Element:
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise RobotError(f"the MJCF of {what} is not well-formed XML: {error}") from error
    if root.tag != "mujoco":
        raise RobotError(f"the MJCF of {what} starts with <{root.tag}>: wrap it in <mujoco>")
    return root
