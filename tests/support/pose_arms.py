"""Model arms with poses: end effector deltas or targets in any frame, with lag, and with a gripper and a base."""

import numpy as np

from dovetail.core.poses import product, quat_of, rotation_between, turned
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Observation

AXES = ("x", "y", "z", "rx", "ry", "rz")
GRIPPER = ActionPart(
    name="gripper",
    kind="gripper",
    unit="1",
    names=("grip",),
    low=(0.0,),
    high=(1.0,),
    max_speed=(2.0,),
    hold="last",
)
BASE = ActionPart(name="base", kind="velocity", unit="m/s", names=("vx",), low=(-0.5,), high=(0.5,), hold="zero")


def _pose_part(name, kind, frame, measured):
    is_delta = kind == "ee_delta"
    return ActionPart(
        name=name,
        kind=kind,
        unit="m+rad",
        names=tuple(f"{name}_{axis}" for axis in AXES),
        low=(-0.02,) * 3 + (-0.1,) * 3 if is_delta else (-1.0,) * 3 + (-4.0,) * 3,
        high=(0.02,) * 3 + (0.1,) * 3 if is_delta else (1.0,) * 3 + (4.0,) * 3,
        max_speed=(0.2,) * 3 + (1.0,) * 3,
        hold="zero" if is_delta else "measured",
        frame=frame,
        measured=measured,
    )


class PoseArms:
    """`adds_to`: deltas are added to the servo `reference` or the `measured` pose. Each tick covers `share` of the way."""

    def __init__(self, kind, frame, *, num_arms=1, adds_to="reference", share=0.6, hz=10.0, task=None):
        names = [f"arm{number}" for number in range(num_arms)]
        self.kind, self.frame, self.adds_to, self.share = kind, frame, adds_to, share
        self.spec = RobotSpec(
            name="pose_arms",
            embodiment="pose_arms",
            observation={"ee_pose": ArraySpec(shape=(7 * num_arms,))},
            parts=(
                *(_pose_part(name, kind, frame, f"ee_pose[{7 * i}:{7 * i + 7}]") for i, name in enumerate(names)),
                GRIPPER,
                BASE,
            ),
            control_hz=hz,
        )
        self.positions = [np.array((0.4, 0.1 * i, 0.3)) for i in range(num_arms)]
        self.quats = [quat_of(np.array((0.4, -0.3, 0.2))) for _ in range(num_arms)]
        self.goals = list(zip([p.copy() for p in self.positions], self.quats, strict=True))
        self.stuck = None  # an arm that does not move
        self.sent, self.base_m, self.velocity, self._now_ns = [], 0.0, 0.0, 0
        self.follow_reset()
        if task is not None:
            task.bind_reset(self.follow_reset)

    def follow_reset(self):
        self.frames = list(self.quats)

    def observe(self):
        pose = np.concatenate([np.concatenate(pair) for pair in zip(self.positions, self.quats, strict=True)])
        return Observation(time_ns=self._now_ns, values={"ee_pose": pose.astype(np.float32)})

    def send(self, action):
        action = np.array(action, np.float32)
        self.sent.append(action)
        for arm in range(len(self.positions)):
            self.goals[arm] = self._goal(arm, action[6 * arm : 6 * arm + 6].astype(np.float64))
        self.velocity = float(action[-1])
        return action

    def _goal(self, arm, part):
        if self.kind == "ee_target":
            return part[:3], quat_of(part[3:])
        frame = {"base": np.array((1.0, 0.0, 0.0, 0.0)), "reset": self.frames[arm], "tool": self.quats[arm]}[
            self.frame
        ]
        here = (self.positions[arm], self.quats[arm]) if self.adds_to == "measured" else self.goals[arm]
        return here[0] + turned(frame, part[:3]), product(quat_of(turned(frame, part[3:])), here[1])

    def stop(self):
        self.goals, self.velocity = list(zip(self.positions, self.quats, strict=True)), 0.0

    def advance(self, duration_ns):
        self._now_ns += duration_ns
        self.base_m += self.velocity * duration_ns / 1e9
        for arm, (position, quat) in enumerate(self.goals):
            if arm == self.stuck:
                continue
            self.positions[arm] = self.positions[arm] + self.share * (position - self.positions[arm])
            turn = self.share * rotation_between(self.quats[arm], quat)
            made = product(quat_of(turn), self.quats[arm])
            self.quats[arm] = made / np.linalg.norm(made)
