"""Leader arms: mapping, handover without a jump, dead-man switch, loss and feedback."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dovetail.core.abilities import Leader
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import RobotError, UsageError
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import Event, HumanInput, Observation
from dovetail.human.gamepad import ABS_Y, GamepadConfig
from dovetail.human.leader import LeaderConfig, LeaderOperator
from dovetail.human.leader_mapping import JointMap
from dovetail.human.several import SeveralConfig, SeveralOperators
from dovetail.runs.assembly.leaders import RobotLeader, build_leader
from dovetail.testing.input_devices import EmulatedGamepad, EmulatedGamepadOperator, EmulatedKernel, EmulatedPedal
from dovetail.testing.mobile_arm import FakeDelivery, FakeDeliveryConfig, FakeMobileArm, FakeMobileArmConfig
from dovetail.testing.operators import check_dead_man, check_operator
from support.acting import FakeWorkcell, order
from support.input_hands import settle
from support.waiting import wait_until

PAUSED = HumanInput(event=Event.PAUSE)
STEP = 1.0 / 20.0


def part(
    name, names, *, kind="joint_target", unit="rad", low=-2.0, high=2.0, measured="joint_pos[0:2]", hold="measured"
):
    count = len(names)
    return ActionPart(
        name=name, kind=kind, unit=unit, names=names, low=(low,) * count, high=(high,) * count, max_speed=(1.0,) * count,
        hold=hold, measured=measured,
    )  # fmt: skip


LEFT = part("left", ("l1", "l2"))
RIGHT = part("right", ("r1", "r2"), measured="joint_pos[2:4]")
GRIPPER = part("gripper", ("grip",), kind="gripper", unit="m", low=0.0, high=0.08, measured="width", hold="last")


def robot(*parts):
    shapes = {"joint_pos": ArraySpec(shape=(4,)), "width": ArraySpec(shape=(1,))}
    return RobotSpec(name="rig", embodiment="rig", observation=shapes, control_hz=20.0, parts=parts)


SPEC = robot(LEFT, GRIPPER)


def seen(*joints, width=0.08):
    full = np.zeros(4, np.float32)
    full[: len(joints)] = joints
    return Observation(time_ns=0, values={"joint_pos": full, "width": np.array([width], np.float32)})


class Hand:
    """A leader arm that a test holds."""

    name, can_follow = "hand", True

    def __init__(self, axes=("l1", "l2", "grip"), units=("rad", "rad", "m"), at=(0.0, 0.0, 0.08)):
        self.axes, self.units = axes, units
        self.at, self.fails, self.hangs = np.array(at, np.float64), False, False
        self.calls, self.followed = [], None
        self.threads = set()

    def read(self):
        self.threads.add(threading.get_ident())
        while self.hangs:
            time.sleep(0.005)
        if self.fails:
            raise RobotError("leader 'hand' is unplugged")
        self.calls.append("read")
        return self.at.copy()

    def follow(self, positions):
        self.calls.append("follow")
        self.followed = positions.copy()

    def release(self):
        self.calls.append("release")

    def close(self):
        self.calls.append("close")


class EmulatedLeaderOperator(LeaderOperator):
    kernel = EmulatedKernel


class Seat:
    """A leader, its key, and the operator that they make."""

    def __init__(self, folder, *, hand=None, spec=SPEC, **settings):
        self.device = EmulatedPedal(folder / "pedal")
        self.device.plug_in()
        self.hand, self.spec, self.settings = hand or Hand(), spec, settings
        self.operators = []

    def make(self, task=None):
        config = LeaderConfig(leader={"type": "any"}, path=str(self.device.path), **self.settings)
        operator = EmulatedLeaderOperator(config, robot=self.spec, leader=self.hand)
        self.operators.append(operator)
        return operator

    def open(self):
        operator = self.make()
        operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
        return operator

    def settle(self):
        for operator in self.operators:
            settle(operator)
            before = len(self.hand.calls)
            if not self.hand.fails and not self.hand.hangs and operator._leader._thread is not None:
                wait_until(lambda before=before: self.hand.calls[before:].count("read") > 1)

    def hold(self):
        self.device.hold()
        self.settle()

    def let_go(self):
        self.device.let_go()
        self.settle()

    def lose(self):
        self.hand.fails = True
        (operator,) = [one for one in self.operators if one._leader._thread is not None]
        wait_until(lambda: operator._leader.newest() is None)

    def close(self):
        self.hand.hangs = False
        for operator in self.operators:
            operator.close()
        self.device.unplug()


@pytest.fixture
def seat(tmp_path):
    made = []

    def make(**settings):
        made.append(Seat(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def task():
    return FakeDelivery(FakeDeliveryConfig(max_steps=1000, tolerance=1e-9))


def mobile(task):
    return FakeMobileArm(FakeMobileArmConfig(), task=task)


MOBILE = {
    "spec": mobile(None).spec,
    "hand": None,
    "handover": "blend",
}


def mobile_seat(seat):
    return seat(**{**MOBILE, "hand": Hand(("shoulder", "elbow", "gripper"), ("rad", "rad", "1"), (0.1, 0.1, 1.0))})


def test_leader_passes_check_operator(seat):
    check_operator(mobile_seat(seat).make, task, mobile, reproducible=False, num_ticks=20)


def test_leader_passes_check_dead_man(seat):
    one = mobile_seat(seat)
    check_dead_man(one.make, task, mobile, hold=one.hold, let_go=one.let_go, lose=one.lose)


class ActsBeforeTicks:
    """An operator whose people do something before some ticks."""

    def __init__(self, inner, acts):
        self.name, self.reset, self._inner, self._acts, self._tick = inner.name, inner.reset, inner, acts, -1

    def poll(self, observation):
        self._tick += 1
        self._acts.get(self._tick, lambda: None)()
        return self._inner.poll(observation)


def test_gamepad_drives_the_base_while_a_leader_leads_the_arm(seat, tmp_path):
    one, spec = mobile_seat(seat), mobile(None).spec
    with EmulatedGamepad(tmp_path / "pad") as pad:
        config = GamepadConfig(path=str(pad.path), part="base", max_silence_s=None)
        gamepad = EmulatedGamepadOperator(config, robot=spec)
        both = SeveralConfig(operators=({"type": "leader"}, {"type": "gamepad"}))
        people = SeveralOperators(both, robot=spec, inner=[one.make(), gamepad])

        def drive():
            pad.hold()
            pad.push(ABS_Y, -1.0)  # forward
            settle(gamepad)

        def rest():
            pad.let_go()
            settle(gamepad)

        cell = FakeWorkcell(
            raw=lambda task, clock: mobile(task),
            task=FakeDelivery(FakeDeliveryConfig(max_steps=30, tolerance=1e-9)),
        )
        people = ActsBeforeTicks(people, {2: one.hold, 10: drive, 20: rest})
        episode = cell.actor(None, operator=people).run(order())
        gamepad.close()
    arm, base = episode.column("executed")[:, :2], episode.column("executed")[:, 3:]
    assert np.abs(arm[9] - arm[0]).max() > 0.02 and np.abs(arm[19] - 0.1).max() < np.abs(arm[9] - 0.1).max() + 1e-6
    assert not base[:10].any()  # nobody drives it: it stands still
    assert base[19] == pytest.approx((0.4, 0.0), abs=0.02)
    assert not base[-3:].any()


def test_robot_follows_the_leader_by_name_once_it_is_near(seat):
    one = seat()
    operator = one.open()
    assert operator.poll(seen(0.0, 0.0)) == HumanInput()  # the switch is not held
    one.hold()
    polled = operator.poll(seen(0.0, 0.0))
    assert polled.axes.tolist() == [True, True, True]
    np.testing.assert_allclose(polled.action, (0.0, 0.0, 0.08), atol=1e-6)
    one.hand.at[:] = (0.03, -0.02, 0.01)
    one.settle()
    np.testing.assert_allclose(operator.poll(seen(0.0, 0.0)).action, (0.03, -0.02, 0.01), atol=1e-6)
    one.let_go()
    assert operator.poll(seen(0.0, 0.0)) == HumanInput()


def test_robot_stands_still_until_the_leader_is_near(seat, capfd):
    one = seat(hand=Hand(at=(1.0, 0.0, 0.08)))
    operator = one.open()
    one.hold()
    np.testing.assert_allclose(operator.poll(seen(0.2, 0.1)).action, (0.2, 0.1, 0.08), atol=1e-6)
    np.testing.assert_allclose(
        operator.poll(seen(0.15, 0.1)).action, (0.2, 0.1, 0.08), atol=1e-6
    )  # it does not sag
    wait_until(lambda: "move the leader to the robot: l1 is 0.8" in capfd.readouterr().err)
    one.hand.at[0] = 0.25
    one.settle()
    first = operator.poll(seen(0.2, 0.1)).action
    np.testing.assert_allclose(first[:2], (0.2, 0.1), atol=0.2 * STEP + 1e-6)
    joints = np.array((0.2, 0.1))
    for _ in range(30):
        joints = operator.poll(seen(*joints)).action[:2]
    np.testing.assert_allclose(joints, (0.25, 0.0), atol=1e-6)  # the rest is blended out


def test_blended_robot_moves_to_the_leader_slowly(seat):
    one = seat(hand=Hand(at=(1.0, 0.0, 0.08)), handover="blend", blend_speed=0.5)
    operator = one.open()
    one.hold()
    joints, path = np.array((0.0, 0.0)), []
    for _ in range(60):
        joints = operator.poll(seen(*joints)).action[:2]
        path.append(joints[0])
    assert path[0] == pytest.approx(0.5 * STEP) and max(np.diff(path)) <= 0.5 * STEP + 1e-6
    assert path[-1] == pytest.approx(1.0)


def test_gripper_that_holds_an_object_does_not_open_at_the_takeover(seat):
    one = seat(hand=Hand(at=(0.0, 0.0, 0.08)))  # open
    operator = one.open()
    one.hold()
    assert operator.poll(seen(0.0, 0.0, width=0.02)).action[2] == pytest.approx(0.02)
    one.hand.at[2] = 0.03
    one.settle()
    assert operator.poll(seen(0.0, 0.0, width=0.02)).action[2] == pytest.approx(0.02, abs=0.011)


def test_lost_leader_holds_until_the_key_is_pressed_again(seat):
    one = seat()
    operator = one.open()
    one.hold()
    assert operator.poll(seen()).action is not None
    one.lose()
    assert operator.poll(seen()) == PAUSED
    one.hand.fails = False
    wait_until(lambda: operator._leader.newest() is not None)
    assert operator.poll(seen()) == PAUSED  # the key is still held
    one.let_go()
    assert operator.poll(seen()) == PAUSED
    one.hold()
    assert operator.poll(seen()).action is not None


def test_leader_that_was_lost_and_returned_between_two_polls_holds(seat):
    one = seat()
    operator = one.open()
    one.hold()
    assert operator.poll(seen()).action is not None
    one.lose()
    one.hand.fails = False
    wait_until(lambda: operator._leader.newest() is not None)
    assert operator.poll(seen()) == PAUSED


def test_leader_that_hangs_stops_driving_when_its_reading_expires(seat):
    one = seat()
    operator = one.open()
    one.hold()
    assert operator.poll(seen()).action is not None
    one.hand.hangs = True
    wait_until(lambda: operator.poll(seen()).event is Event.PAUSE)
    one.hand.hangs = False


def test_unplugged_key_holds(seat):
    one = seat()
    operator = one.open()
    one.hold()
    assert operator.poll(seen()).action is not None
    one.device.unplug()
    settle(operator)
    assert operator.poll(seen()) == PAUSED


def test_invalid_positions_count_as_a_loss(seat):
    one = seat()
    operator = one.open()
    one.hold()
    assert operator.poll(seen()).action is not None
    one.hand.at[1] = np.nan
    wait_until(lambda: operator._leader.newest() is None)
    assert operator.poll(seen()) == PAUSED


def test_squeeze_starts_once_per_episode(seat):
    one = seat(switch="squeeze")
    one.hand.at[2] = 0.0  # closed already: does not count
    operator = one.open()
    one.settle()
    assert operator.poll(seen()) == HumanInput()
    for width in (0.08, 0.0):
        one.hand.at[2] = width
        one.settle()
    assert operator.poll(seen(width=0.0)).action is not None
    one.hand.at[2] = 0.08
    one.settle()
    assert operator.poll(seen(width=0.0)).action is not None  # opening the gripper is part of the task
    operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)
    one.settle()
    assert operator.poll(seen()) == HumanInput()


def test_squeeze_without_a_gripper_is_refused(seat):
    with pytest.raises(UsageError, match="switch=key"):
        seat(spec=robot(LEFT), hand=Hand(("l1", "l2"), ("rad", "rad"), (0, 0)), switch="squeeze").make()


# ---- mapping


def test_table_maps_other_names_with_sign_scale_offset_and_unit(seat):
    table = {
        "l1": JointMap(axis="base", scale=-1.0, offset=0.1),
        "l2": JointMap(axis="arm"),
        "grip": JointMap(axis="claw", scale=0.08 / 100.0),
    }
    hand = Hand(("base", "arm", "claw"), ("deg", "deg", "1"), (10.0, 2.0, 50.0))
    one = seat(hand=hand, joints=table, handover="blend", blend_speed=1.0)
    operator = one.open()
    one.hold()
    joints = np.array((0.0, 0.0))
    for _ in range(20):
        action = operator.poll(seen(*joints, width=0.04)).action
        joints = action[:2]
    np.testing.assert_allclose(action, (0.1 - np.radians(10.0), np.radians(2.0), 0.04), atol=1e-5)


def test_leader_of_one_arm_leaves_the_other_arm_to_the_policy(seat):
    one = seat(spec=robot(LEFT, RIGHT), hand=Hand(("r1", "r2"), ("rad", "rad"), (0, 0)))
    operator = one.open()
    assert operator.drives.tolist() == [False, False, True, True]
    one.hold()
    assert operator.poll(seen()).axes.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("spec", "hand", "line"),
    [
        (SPEC, Hand(("x",), ("rad",), (0,)), "Set operator.joints"),
        (SPEC, Hand(("l1",), ("rad",), (0,)), "no axis 'l2' of part 'left'"),
        (SPEC, Hand(("l1", "l2"), ("rad", "m"), (0, 0)), "in m at the leader, but in rad at the robot"),
        (
            robot(part("left", ("l1", "l2"), kind="velocity", unit="rad/s", hold="zero", measured="")),
            Hand(("l1", "l2"), ("rad", "rad"), (0, 0)),
            "takes velocity actions",
        ),
    ],
)
def test_leader_that_does_not_fit_is_refused(seat, spec, hand, line):
    with pytest.raises(UsageError, match=line):
        seat(spec=spec, hand=hand).make()


def test_missing_leader_is_refused_at_the_check_and_at_the_start(seat):
    one = seat()
    one.hand.fails = True
    operator = one.make()
    for start in (operator.check_device, lambda: operator.reset(rng=np.random.default_rng(0), robot_minutes=0.0)):
        with pytest.raises(UsageError, match=r"cannot read 'hand': .*is unplugged"):
            start()


@pytest.mark.parametrize("starts_slowly", [False, True])
def test_leader_that_starts_slowly_gets_the_time_that_it_asks_for(seat, monkeypatch, starts_slowly):
    monkeypatch.setattr("dovetail.human.leader_reader._OPEN_S", 0.05)
    one = seat()
    one.hand.hangs = True
    threading.Timer(0.3, setattr, (one.hand, "hangs", False)).start()
    if starts_slowly:
        one.hand.start_timeout_s = 5.0
        one.make().check_device()
    else:
        with pytest.raises(UsageError, match=r"has not answered for 0.05 s"):
            one.make().check_device()


def test_watching_for_the_emergency_stop_does_not_connect_the_leader(seat):
    """The supervisor watches, too, and many arms accept one connection only."""
    one = seat(stop_key="KEY_C")
    operator, pressed = one.make(), []
    operator.watch(pressed.append)
    settle(operator)
    one.device.press(46)
    wait_until(lambda: pressed == ["leader"])
    assert not one.hand.calls


# ---- feedback


def test_leader_follows_the_robot_until_the_person_takes_over(seat):
    one = seat(feedback=True, joints={"l2": JointMap(axis="l2", scale=-2.0)})
    operator = one.open()
    until_s = time.monotonic() + 5.0
    while one.hand.followed is None and time.monotonic() < until_s:
        operator.poll(seen(0.4, 0.2, width=0.05))
        time.sleep(0.01)
    np.testing.assert_allclose(one.hand.followed, (0.4, -0.1, 0.05), atol=1e-6)
    one.hand.at[:] = one.hand.followed
    one.hold()
    action = operator.poll(seen(0.4, 0.2, width=0.05)).action
    np.testing.assert_allclose(action, (0.4, 0.2, 0.05), atol=1e-6)  # no jump
    wait_until(lambda: one.hand.calls[-2:].count("follow") == 0 and "release" in one.hand.calls)
    assert len(one.hand.threads) == 1


def test_leader_stops_following_if_the_control_loop_stops_polling(seat):
    one = seat(feedback=True)
    operator = one.open()
    operator.poll(seen(0.4, 0.2))
    wait_until(lambda: one.hand.followed is not None)
    wait_until(lambda: one.hand.calls[-1] == "read" and one.hand.calls[-2:].count("follow") == 0)
    assert one.hand.calls.count("release") >= 1


# ---- a robot as a leader


def test_any_robot_with_joints_can_lead():
    clock = SimulatedClock()
    leader = build_leader({"type": "dovetail.testing.mobile_arm:FakeMobileArm"}, clock=clock)
    assert isinstance(leader, Leader) and isinstance(leader, RobotLeader)
    assert leader.axes == ("shoulder", "elbow", "gripper") and leader.units == ("rad", "rad", "1")
    leader.read()
    leader.follow(np.array((0.1, -0.1, 0.5)))
    clock.sleep_until(10**8)
    np.testing.assert_allclose(leader.read()[:2], (0.1, -0.1), atol=1e-6)
    clock.sleep_until(2 * 10**8)
    leader.follow(np.array((2.0, 0.0, 0.5)))  # behind the safety filter
    clock.sleep_until(3 * 10**8)
    assert leader.read()[0] <= 0.1 + 1.5 / 10.0 + 1e-6


def test_robot_as_leader_follows_the_robot_hands_over_without_a_jump_and_follows_again(seat):
    """A second arm of the same type leads: the follower's pose is fed back, twice, with a takeover between."""
    clock = SimulatedClock()
    leader = build_leader({"type": "dovetail.testing.mobile_arm:FakeMobileArm"}, clock=clock)
    one = seat(spec=mobile(None).spec, hand=leader, feedback=True)
    operator = one.open()

    def here(*joints):
        values = {"joint_pos": np.array(joints, np.float32), "opening": np.ones(1, np.float32)}
        return Observation(time_ns=clock.now_ns(), values=values)

    def follows(*joints):
        """Let time pass until the leader stands where the robot is."""

        def is_there():
            assert operator.poll(here(*joints)).action is None  # the policy drives
            clock.sleep_until(clock.now_ns() + 10**8)
            newest = operator._leader.positions()
            return newest is not None and np.allclose(newest[:2], joints, atol=1e-3)

        wait_until(is_there)

    follows(0.5, -0.4)
    one.device.hold()
    settle(operator)
    action = operator.poll(here(0.5, -0.4)).action
    np.testing.assert_allclose(action[:2], (0.5, -0.4), atol=0.15)  # one tick: 1.5 rad/s at 10 Hz
    np.testing.assert_allclose(action[:2], (0.5, -0.4), atol=2e-3)  # and it was near
    one.device.let_go()
    settle(operator)
    operator.poll(here(0.5, -0.4))
    follows(-0.3, 0.2)


def test_robot_without_measured_joints_or_poses_cannot_lead():
    base = robot(part("base", ("x", "turn"), kind="velocity", unit="m/s+rad/s", hold="zero", measured=""))
    with pytest.raises(UsageError, match=r"no measured joint targets, joint velocities or poses, but velocity"):
        RobotLeader(SimpleNamespace(spec=base), SimulatedClock())


def test_robot_that_measures_nonsense_is_a_lost_leader():
    class Broken(FakeMobileArm):
        def observe(self):
            found = super().observe()
            return replace(found, values={**found.values, "joint_pos": np.full(2, np.nan, np.float32)})

    leader = RobotLeader(Broken(FakeMobileArmConfig()), SimulatedClock())
    with pytest.raises(RobotError, match="not finite"):
        leader.read()
