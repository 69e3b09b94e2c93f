"""Cameras next to a robot: `RobotWithCameras` adds their images to any robot's observations."""

from dovetail.robots.cameras.robot import RobotWithCameras

__all__ = ["RobotWithCameras"]
