"""The task for a real table: reset by motions and a person, verdicts by people and labelers, on robots of every kind."""

import subprocess
import sys

import numpy as np
import pytest

from dovetail.actor.actors import ActorConfig, board_layout, make_loop
from dovetail.actor.board import Board
from dovetail.actor.inference import InlineInference
from dovetail.actor.modes import Sequential
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import ConfigError, RobotFault, UsageError
from dovetail.core.poses import quat_of, rotation_between
from dovetail.core.types import Event, HumanInput, Outcome
from dovetail.human.none import NoOperator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.tasks.table import TableConfig, TableTask
from dovetail.testing.fakes import FakeBimanual, FakeBimanualConfig
from dovetail.testing.mobile_arm import FakeMobileArm, FakeMobileArmConfig
from support.acting import ChunkPolicy, Person, order
from support.pose_arms import PoseArms

HOME = {"parts": {"arm": (0.5, -0.5)}, "speed": 0.5}
POSE = (0.5, 0.05, 0.25, *quat_of(np.array((0.0, 0.6, 0.5))).tolist())


class Cell:
    """A robot with the table task and a control loop."""

    def __init__(
        self, make=lambda task: FakeMobileArm(FakeMobileArmConfig(), task=task), *, operator=None, **config
    ):
        self.task = TableTask(TableConfig.from_mapping({"prompt": "do it", "time_limit_s": 1.0, **config}))
        self.raw = make(self.task)
        self.clock = SimulatedClock()
        self.clock.on_advance(self.raw.advance)
        self.robot = SafeRobot(self.raw, SafetyConfig(), self.clock)
        policy = ChunkPolicy(self.raw.spec)
        act = policy.act
        still = np.concatenate([_still(self.raw, part) for part in self.raw.spec.parts])
        policy.act = lambda observations, context: _with(act(observations, context), still)
        settings = ActorConfig()
        layout = board_layout(settings, robot=self.raw.spec, policy=policy.spec, extras=self.robot.safety_extras())
        self.board, self.stop, self.requests = Board(layout), False, []
        ask = self.board.ask_person
        self.board.ask_person = lambda text: (self.requests.append(text), ask(text))[1]
        self.loop = make_loop(
            settings,
            Sequential(),
            robot=self.robot,
            task=self.task,
            operator=operator or NoOperator(),
            policy=policy.spec,
            inference=InlineInference(self.board, policy),
            board=self.board,
            clock=self.clock,
            telemetry=Telemetry(),
            probe=dict,
            should_stop=lambda: self.stop,
        )

    def run(self, index=0):
        return self.loop.run(order(index=index))


def _still(raw, part):
    key = part.measured_key if part.kind == "joint_target" else ""
    return raw.observe().values[key][part.measured_slice] if key else np.zeros(part.num_axes)


def _with(chunk, still):
    chunk.actions[:] = still
    return chunk


def sends(event):
    return HumanInput(event=event)


def test_an_episode_begins_at_home_and_ends_at_its_time_limit():
    cell = Cell(home=HOME)
    ended = cell.run()
    assert (ended.outcome, ended.num_steps) == (Outcome.TIMEOUT, 10)  # 1 s at 10 Hz
    first = cell.board.observation(0).values["joint_pos"]
    np.testing.assert_allclose(first, (0.5, -0.5), atol=0.02)
    assert ended.reset_s > 0.5
    assert cell.task.judge(cell.robot, None, num_steps=1).rewards == {"success": 0.0}


def test_random_offsets_differ_between_episodes_and_repeat_with_the_seed():
    def starts():
        cell = Cell(home=HOME | {"offsets": {"arm": (0.3, 0.0)}})
        seen = []
        for index in range(4):
            cell.run(index)
            seen.append(cell.board.observation(cell.board.first).values["joint_pos"].copy())
        return np.array(seen)

    first, again = starts(), starts()
    np.testing.assert_array_equal(first, again)
    assert np.ptp(first[:, 0]) > 0.1 and np.abs(first[:, 0] - 0.5).max() <= 0.32
    np.testing.assert_allclose(first[:, 1], -0.5, atol=0.02)


def test_a_routine_moves_part_by_part_and_waits():
    closed = []
    cell = Cell(
        home=HOME,
        routine=[
            {"parts": {"gripper": (0.0,)}, "wait_s": 0.5},
            {"parts": {"arm": (0.0, 0.0)}},
            {"parts": {"gripper": (1.0,)}},
        ],
    )
    send = cell.raw.send
    cell.raw.send = lambda action: (closed.append((action[2], cell.raw.joints[0])), send(action))[1]
    cell.run()
    gripped = [joint for opening, joint in closed if opening == 0.0]
    assert len(gripped) > 5 + 4 and max(gripped) > 0.45 and min(gripped) < 0.1  # held from home to the other place
    first = cell.board.observation(0).values
    np.testing.assert_allclose(first["joint_pos"], 0.0, atol=0.02)
    assert first["opening"] == 1.0
    assert cell.raw.base.tolist() == [0.0, 0.0]


def test_the_arm_waits_for_a_person_and_shows_the_request():
    person = Person({3: sends(Event.START), 7: sends(Event.SUCCESS)})
    cell = Cell(home=HOME, ask="place the part", operator=person)
    ended = cell.run()
    assert cell.requests == ["place the part. Then press start", ""]
    assert (ended.outcome, ended.num_steps) == (Outcome.SUCCESS, 3)  # polls 4, 5 and 6


def test_what_was_pressed_before_the_request_does_not_start_the_episode():
    person = Person({0: sends(Event.START)})  # `reset` counts the polls from 0 again
    cell = Cell(ask="place the part", operator=person, routine=[{"ask": "remove the part"}])
    assert cell.run().outcome is Outcome.TIMEOUT
    assert cell.requests == ["remove the part. Then press start", "", "place the part. Then press start", ""]


def test_no_tick_is_due_while_the_device_of_the_operator_connects():
    """It may take seconds. The guard would take that for a control loop that hangs."""

    class Connects(Person):
        def reset(self, **of_episode):
            beats.append(cell.board.control_ns)
            super().reset(**of_episode)

    beats = []
    cell = Cell(home=HOME, ask="place the part", operator=Connects({3: sends(Event.START)}))
    cell.run()
    assert beats == [0]


def test_a_takeover_answers_the_last_request_but_not_earlier_ones():
    drive = HumanInput(action=np.zeros(5, np.float32))
    person = Person({0: drive, 2: sends(Event.START), 4: drive, 6: sends(Event.FAILURE)})
    person.reset = lambda **kwargs: None  # one count for both requests
    cell = Cell(ask="place", operator=person, routine=[{"ask": "clear the table"}])
    ended = cell.run()
    assert (ended.outcome, ended.num_steps) == (Outcome.FAILURE, 1)  # poll 0 did not answer, poll 4 did


def test_reset_pressed_during_the_request_moves_home_again():
    person = Person({1: sends(Event.RESET), 3: sends(Event.START)})
    resets, reset = [], person.reset
    cell = Cell(home=HOME, ask="place the part", operator=person)
    person.reset = lambda **kwargs: resets.append(cell.raw.joints.copy()) or (len(resets) > 1 or reset(**kwargs))
    cell.run()
    assert len(resets) == 2 and cell.requests.count("place the part. Then press start") == 2


@pytest.mark.parametrize("during", ["motion", "request"])
def test_a_stop_request_ends_the_reset(during):
    cell = Cell(home=HOME | {"speed": 0.05}, ask="place the part", operator=Person({}))

    def then_stop(duration_ns):
        cell.stop = bool(cell.board.person_request) if during == "request" else cell.clock.now_ns() > 5e8

    cell.clock.on_advance(then_stop)
    ended = cell.run()
    assert ended.stopped and ended.outcome is Outcome.ABORTED and ended.num_steps == 0


@pytest.mark.parametrize("event", [Event.EMERGENCY, Event.STOP])
def test_stop_events_work_during_the_request(event):
    cell = Cell(ask="place the part", operator=Person({2: sends(event)}))
    if event is Event.STOP:
        assert cell.run().stopped
        return
    with pytest.raises(RobotFault, match="emergency stop"):
        cell.run()
    assert cell.robot.fault
    assert cell.board.person_request == ""


def test_a_person_is_asked_for_the_verdict_after_a_timeout():
    person = Person({12: sends(Event.SUCCESS)})
    cell = Cell(ask_verdict=True, operator=person)
    ended = cell.run()
    assert (ended.outcome, ended.num_steps) == (Outcome.SUCCESS, 10)
    assert cell.requests == ["did it succeed? Press success or failure", ""]


@pytest.mark.parametrize("frame", ["base", "reset", "tool"])
def test_pose_arms_come_home_in_every_episode(frame):
    """With frame `reset`, the driver's frame changes at each reset; the motion must use the same."""
    home = {"parts": {"arm0": POSE, "arm1": (0.5, -0.1, 0.3)}, "speed": 1.0}
    cell = Cell(lambda task: PoseArms("ee_delta", frame, num_arms=2, task=task), home=home)
    for index in range(2):
        cell.run(index)
        cell.raw.quats[0] = quat_of(np.array((0.9, 0.2, -0.4)))  # somebody moved it
        cell.raw.positions[0] = np.array((0.3, 0.2, 0.4))
        cell.raw.stop()
    pose = cell.board.observation(cell.board.first).values["ee_pose"]
    np.testing.assert_allclose(pose[:3], POSE[:3], atol=0.005)
    assert np.abs(rotation_between(pose[3:7].astype(float), np.array(POSE[3:]))).max() <= 0.02
    np.testing.assert_allclose(
        cell.raw.frames[0], pose[3:7], atol=1e-3
    )  # the frame of the episode is the start pose


def test_24_joints_come_home():
    home = {"parts": {"arm": (0.3,) * 24}, "speed": 1.0}
    cell = Cell(lambda task: FakeBimanual(FakeBimanualConfig(image_size=(8, 6)), task=task), home=home)
    cell.run()
    np.testing.assert_allclose(cell.board.observation(0).values["joint_pos"], 0.3, atol=0.02)


def test_a_table_has_no_expert_and_needs_a_prompt():
    with pytest.raises(UsageError, match="no expert"):
        Cell().task.expert()
    with pytest.raises(Exception, match="prompt"):
        TableConfig.from_mapping({})


def test_a_reset_that_does_not_fit_the_robot_is_refused():
    task = TableTask(TableConfig.from_mapping({"prompt": "x", "home": {"parts": {"arm": (9.0, 0.0)}}}))
    spec = FakeMobileArm(FakeMobileArmConfig()).spec
    with pytest.raises(ConfigError, match=r"task\.home\.parts\.arm is .* outside"):
        task.reset_steps(spec, rng=np.random.default_rng(0))


def test_the_task_loads_no_simulator():
    code = (
        "import sys; from dovetail.config.plugins import resolve; resolve('task', 'table'); "
        "assert 'mujoco' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
