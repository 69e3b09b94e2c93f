"""The server of the bench `serve`, a process of its own: python -m dovetail.bench._serve_process KEY_FILE."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.openpi.keys import KeyMap, key_map

__all__ = ["KEYS", "POLICY_SPEC", "ROBOT", "EchoPolicy"]

_IMAGE = ArraySpec(shape=(224, 224, 3), dtype="uint8")
_OBSERVATION = {
    "joint_pos": ArraySpec(shape=(7,)),
    "gripper": ArraySpec(shape=(1,)),
    **dict.fromkeys(("front", "wrist", "side"), _IMAGE),
}
KEYS = key_map(
    KeyMap(
        images={f"observation/{camera}": camera for camera in ("front", "wrist", "side")},
        state={"observation/joint_position": ("joint_pos",), "observation/gripper_position": ("gripper",)},
    )
)
ROBOT = RobotSpec(
    name="bench",
    embodiment="bench",
    observation=_OBSERVATION,
    action=ArraySpec(shape=(8,), low=(-1e9,) * 8, high=(1e9,) * 8),
    action_kind="joint_target",
    control_hz=15.0,
)
POLICY_SPEC = PolicySpec(
    name="echo",
    observation=_OBSERVATION,
    action=ROBOT.action,
    action_kind=ROBOT.action_kind,
    horizon=10,
    prompted=True,
)


class EchoPolicy:
    """Each action is the first joint position."""

    spec = POLICY_SPEC

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        first = observations["joint_pos"][:, :1, None]
        actions = np.broadcast_to(first, (len(first), 10, 8)).astype(np.float32)
        return ActionChunk(actions=actions, observed_ns=0, policy_version=0)

    def reset(self) -> None:
        """It has no state."""


def main(key_file: str) -> None:
    from dovetail.policies.remote.handshake import read_token
    from dovetail.serve.openpi_server import OpenpiServer

    server = OpenpiServer(EchoPolicy(), token=read_token(Path(key_file)), keys=KEYS, max_rows=16)
    sys.stdout.write(server.listen() + "\n")
    sys.stdout.flush()
    server.run(lambda: False)


if __name__ == "__main__":
    main(sys.argv[1])
