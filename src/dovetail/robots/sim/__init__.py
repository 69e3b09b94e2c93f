"""Arms in MuJoCo. All motion comes from joint torques, as on hardware."""

from dovetail.robots.sim import _gl as _gl  # first: it chooses the GL backend
from dovetail.robots.sim.arm import ARMS, Arm
from dovetail.robots.sim.cameras import Cameras, SimCamera
from dovetail.robots.sim.control import CartesianDelta, Controller, JointTarget
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from dovetail.robots.sim.world import DOWN, EmptyScene, Scene, World

__all__ = [
    "ARMS",
    "DOWN",
    "Arm",
    "Cameras",
    "CartesianDelta",
    "Controller",
    "EmptyScene",
    "JointTarget",
    "Scene",
    "SimCamera",
    "SimRobot",
    "SimRobotConfig",
    "World",
]
