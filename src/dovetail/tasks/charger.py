"""Insert a two-pronged plug, held by friction, into its socket."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dovetail.tasks.peg_insertion import Insertion

__all__ = ["Charger"]


class Charger(Insertion):
    """Blades of 6 x 2 mm, 20 mm apart, into slots with 0.8 mm of play on each side.

    Each blade is 10 mm from the axis, so a rotation of 4.2 degrees uses up the play of a perfectly centered plug.
    """

    name: ClassVar[str] = "charger"
    prompt: ClassVar[str] = "plug the charger into the socket"

    clearance_m = 0.0008
    face_m = 0.026
    success_depth_m = 0.012
    goal_depth_m = 0.016
    corners = np.array([(x, y, 0.0) for x in (-0.011, -0.009, 0.009, 0.011) for y in (-0.003, 0.003)])
    handle_rgba = "0.24 0.25 0.28 1"
    socket_rgba = "0.93 0.92 0.89 1"

    def tool_xml(self) -> str:
        """Blades of 18 mm below a body that comes to rest on the face."""
        return """
          <geom name="blade_a" pos="0.010 0 -0.009" size="0.001 0.003 0.009" rgba="0.85 0.72 0.42 1"/>
          <geom name="blade_b" pos="-0.010 0 -0.009" size="0.001 0.003 0.009" rgba="0.85 0.72 0.42 1"/>
          <geom name="plug" pos="0 0 -0.0265" size="0.016 0.011 0.0085" rgba="0.30 0.31 0.35 1"/>"""

    def socket_xml(self) -> str:
        """Five blocks around two slots, 24 mm deep.

        Two more blocks without contact make the slots dark, because there are no shadows. The ends are so long that, with
        one blade in the wrong slot, the other blade is on the face.
        """
        return """
          <geom name="middle" pos="0 0 0.012" size="0.0082 0.0038 0.012"/>
          <geom name="end_a" pos="0.0269 0 0.012" size="0.0151 0.0038 0.012"/>
          <geom name="end_b" pos="-0.0269 0 0.012" size="0.0151 0.0038 0.012"/>
          <geom name="side_a" pos="0 0.0159 0.012" size="0.042 0.0121 0.012"/>
          <geom name="side_b" pos="0 -0.0159 0.012" size="0.042 0.0121 0.012"/>
          <geom name="ground" pos="0 0 0.025" size="0.047 0.033 0.001" rgba="0.20 0.21 0.24 1"/>
          <geom pos="0.010 0 0.0125" size="0.0018 0.0038 0.0117"
            rgba="0.13 0.13 0.15 1" contype="0" conaffinity="0"/>
          <geom pos="-0.010 0 0.0125" size="0.0018 0.0038 0.0117"
            rgba="0.13 0.13 0.15 1" contype="0" conaffinity="0"/>"""
