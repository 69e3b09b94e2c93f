"""A gripper holds an object, and a person takes over: the object must not fall."""

import time
from dataclasses import replace

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, SequentialActor
from dovetail.core.types import HumanInput
from dovetail.human.handover import Handover
from dovetail.human.mailbox import DriveCommand
from dovetail.human.several import SeveralOperators
from dovetail.testing.fakes import FakeArm, FakeArmConfig
from support.acting import ChunkPolicy, FakeWorkcell, order

OBJECT = 0.4  # the fingers close no further than this
FIRST, PRESSES_OPEN = 4, 8  # ticks


class HoldingArm(FakeArm):
    """Its gripper measures the object, or nothing at all."""

    def __init__(self, *, measures, task, clock):
        super().__init__(FakeArmConfig(), task=task)
        self._measures = measures
        if not measures:
            rest = {key: spec for key, spec in self._spec.observation.items() if key != "gripper"}
            self._spec = replace(self._spec, observation=rest, parts=())

    def observe(self):
        seen = super().observe()
        values = dict(seen.values)
        opening = values.pop("gripper")
        if self._measures:
            values["gripper"] = np.maximum(opening, np.float32(OBJECT))
        return replace(seen, values=values)


class DrivesForward:
    """Takes over, moves forward, and opens the gripper later."""

    name = "person"

    def __init__(self, robot):
        self._handover, self._tick = Handover(robot), 0

    def reset(self, *, rng, robot_minutes):
        self._handover.begin()

    def poll(self, observation):
        self._tick += 1
        axes = np.zeros(7, np.float32)
        axes[0], axes[6] = 0.5, self._tick > PRESSES_OPEN
        command = DriveCommand(
            session=1, sequence=self._tick, held=self._tick > FIRST, axes=axes, press=1,
            time_ns=time.monotonic_ns(), expires_ns=10**10,
        )  # fmt: skip
        return self._handover.decide(command, None, observation) or HumanInput()


@pytest.mark.parametrize("measures", [True, False])
def test_gripper_keeps_its_command_until_the_person_opens_it(measures):
    cell = FakeWorkcell(
        max_steps=14, raw=lambda task, clock: HoldingArm(measures=measures, task=task, clock=clock)
    )
    spec = cell.robot.spec
    assert bool(spec.part("gripper").measured) is measures
    actor = SequentialActor(
        ActorConfig(),
        robot=cell.robot,
        task=cell.task,
        operator=DrivesForward(spec),
        policy=ChunkPolicy(spec, value=0.0),  # closes the gripper
        clock=cell.clock,
    )
    episode = actor.run(order())
    gripper, source = episode.column("executed")[:, 6], episode.column("source")
    assert source[FIRST] == 1 and gripper[FIRST - 1] == 0.0
    np.testing.assert_array_equal(gripper[FIRST:PRESSES_OPEN], 0.0)
    assert gripper[PRESSES_OPEN + 1] > 0.0  # opens when it is told to


def test_several_operators_keep_only_the_grippers_that_their_person_has_not_moved():
    mask = np.arange(7) == 6

    class Fixed:
        name = "fixed"
        demonstrates = False

        def __init__(self, *, keeps, drives):
            self.drives, self._keeps = drives, keeps

        def reset(self, *, rng, robot_minutes): ...

        def release_pose(self): ...

        def poll(self, observation):
            return HumanInput(action=np.zeros(7, np.float32), axes=self.drives, keeps=self._keeps)

    spec = FakeArm(FakeArmConfig()).spec
    first, second = Fixed(keeps=mask, drives=mask), Fixed(keeps=None, drives=~mask)
    polled = SeveralOperators(None, robot=spec, inner=[first, second]).poll(None)
    assert polled.keeps.tolist() == mask.tolist()
