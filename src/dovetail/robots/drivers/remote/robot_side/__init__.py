"""What a robot's computer runs: a server for one robot. It needs Python 3.8 or newer and numpy, and no more of Dovetail.

    class MyArm:
        spec = {
            "name": "my_arm",
            "control_hz": 20,
            "observation": {"joint_pos": {"shape": [6]}},
            "action": [
                {"name": "arm", "kind": "joint_target", "unit": "rad", "axes": 6, "low": -2.8, "high": 2.8,
                 "max_speed": 1.0, "measured": "joint_pos"},
            ],
        }

        def observe(self):
            return {"joint_pos": ...}          # arrays with the shapes of the spec

        def send(self, action):                # one value per axis, float32
            ...                                # return the executed action, or None if it is the given one

        def stop(self):                        # from any thread, also while another call hangs
            ...

    python dovetail_robot.pyz my_arm:MyArm

This folder imports nothing else of Dovetail, so that `dovetail robot server-file` can write it as one file.
"""

from __future__ import annotations

from .command import serve
from .server import RobotServer

__all__ = ["RobotServer", "serve"]
