"""Run by a slow test in the environment of `scripts/lerobot-env`: LeRobot's own motor bus at the port in argv[1].

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys

import dovetail_lerobot_env  # noqa: F401  # before torchvision
from lerobot.motors import Motor, MotorNormMode
from lerobot.motors.feetech import FeetechMotorsBus

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


def main() -> None:
    motors = {name: Motor(i + 1, "sts3215", MotorNormMode.DEGREES) for i, name in enumerate(JOINTS)}
    bus = FeetechMotorsBus(sys.argv[1], motors)
    bus.connect()
    found = {"ping": bus.broadcast_ping(), "registers": {}}
    for name in bus.model_ctrl_table["sts3215"]:
        found["registers"][name] = bus.read(name, "wrist_roll", normalize=False)
    bus.calibration = bus.read_calibration()
    found["degrees"] = bus.sync_read("Present_Position")
    bus.reset_calibration()
    found["homings"] = bus.set_half_turn_homings()
    found["after_homing"] = bus.sync_read("Present_Position", normalize=False)
    with bus.torque_disabled():
        bus.write("P_Coefficient", "gripper", 16)
    found["torque"] = bus.sync_read("Torque_Enable")
    bus.disconnect()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
