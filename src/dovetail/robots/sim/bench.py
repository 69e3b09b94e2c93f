"""Speed of the simulation on one core. Each function runs for about `seconds`."""

from __future__ import annotations

import time

import numpy as np

from dovetail.robots.sim.arm import ARMS
from dovetail.robots.sim.control import CartesianDelta
from dovetail.robots.sim.robot import SimRobot, SimRobotConfig
from dovetail.robots.sim.world import EmptyScene, World

__all__ = ["control_steps_per_s", "observations_per_s", "physics_steps_per_s"]

_CUBE = """<body name="cube" pos="0.35 0.15 0.02"><freejoint/>
<geom name="cube" type="box" size="0.02 0.02 0.02" mass="0.08"/></body>"""
_SUBSTEPS = 50  # 10 Hz control over 2 ms physics
_RESET_EVERY = 40


def physics_steps_per_s(seconds: float = 2.0, *, arm: str = "panda") -> float:
    """Physics only: the joint targets swing and a cube lies on the table; no controller."""
    world = World(arm=ARMS[arm], scene=EmptyScene(body=_CUBE))
    home, count, start = world.joint_targets(), 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        world.data.ctrl[world.joint_ctrl] = home + 0.2 * np.sin(0.01 * count)
        world.advance(200)
        count += 200
    return count / elapsed


def control_steps_per_s(seconds: float = 2.0, *, arm: str = "panda") -> float:
    """Random Cartesian actions at 10 Hz: inverse kinematics and 50 physics steps each, with contacts."""
    world = World(arm=ARMS[arm], scene=EmptyScene(body=_CUBE))
    controller = CartesianDelta()
    actions = np.random.default_rng(0).uniform(controller.low, controller.high, (4096, 7))
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        if count % _RESET_EVERY == 0:
            world.reset()
            controller.reset(world)
        controller.command(world, actions[count % len(actions)])
        world.advance(_SUBSTEPS)
        count += 1
    return count / elapsed


def observations_per_s(seconds: float = 2.0, *, arm: str = "panda", size: int = 128) -> float:
    """Whole observations with two cameras (wrist and front), without physics."""
    config = SimRobotConfig.model_validate({"arm": arm, "images": ("wrist", "front"), "image_size": (size, size)})
    robot = SimRobot(config)
    robot.observe()  # makes the GL context
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        robot.observe()
        count += 1
    robot.close()
    return count / elapsed
