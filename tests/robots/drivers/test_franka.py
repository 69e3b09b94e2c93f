"""The Franka driver against the emulated server: contract, settings, faults, stop, acknowledgement, two arms."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from pydantic import ValidationError

from dovetail.config.safety import SafetyConfig, Workspace
from dovetail.core.abilities import HearsAcknowledgement, IndependentStop, PreparesReset
from dovetail.core.clock import RealClock
from dovetail.core.contracts import SimulatedRobot
from dovetail.core.errors import RobotError, RobotFault, StopRequested
from dovetail.emulators.franka.emulator import FrankaEmulator, FrankaEmulatorConfig
from dovetail.emulators.franka.misbehavior import KINDS
from dovetail.robots.drivers.franka.driver import FrankaRobot
from dovetail.robots.drivers.franka.emulated import EmulatedFranka
from dovetail.robots.drivers.franka.settings import COMPLIANCE, EmulatedFrankaConfig, FrankaConfig
from dovetail.robots.safety import SafeRobot
from dovetail.tasks.peg_insertion import InsertionConfig, PegInsertion
from dovetail.testing import check_robot
from support.waiting import wait_until

BOX = Workspace(low=(0.3, -0.2, 0.15), high=(0.6, 0.2, 0.5))


@pytest.fixture
def emulate():
    opened = []

    def start(**settings):
        emulator = FrankaEmulator(FrankaEmulatorConfig(port=0, **settings))
        emulator.start()
        opened.append(emulator)
        return emulator

    yield start
    for emulator in opened:
        emulator.close()


@pytest.fixture
def connect():
    robots = []

    def build(*emulators, **settings):
        addresses = {"address": emulators[0].address}
        if len(emulators) > 1:
            addresses["right_address"] = emulators[1].address
        robot = FrankaRobot(FrankaConfig(**addresses, **{"gripper": "hil_serl_franka", **settings}))
        robots.append(robot)
        return robot

    yield build
    for robot in robots:
        robot.close()


def guarded(robot, **safety):
    return SafeRobot(robot, SafetyConfig(workspace=BOX, **safety), RealClock())


def move(dx=0.0, dy=0.0, dz=0.0, gripper=1.0):
    return np.array([dx, dy, dz, 0, 0, 0, gripper], np.float32)


def speed(emulator):
    return float(np.linalg.norm(emulator.arm.state()["vel"][:3]))


def position(emulator):
    return np.array(emulator.arm.state()["pose"][:3])


def drive(safe, action, *, seconds, tick_s=0.05):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        safe.observe()
        safe.send(action)
        time.sleep(tick_s)
    return safe.observe()


# ---- settings


def test_rotational_clip_above_its_range_is_refused_because_the_server_would_clamp_it():
    with pytest.raises(
        ValidationError, match=r"rotational_clip_x is 0.5, .* 0 to 0.1: the server would clamp it silently"
    ):
        FrankaConfig(gripper="none", compliance={"rotational_clip_x": 0.5})


SIGNED_AXES = [f"{sign}{axis}" for sign in ("", "neg_") for axis in "xyz"]
LARGEST = {  # as the controller declares them; the smallest value is always 0
    "translational_stiffness": 6000.0,
    "translational_damping": 400.0,
    "rotational_stiffness": 300.0,
    "rotational_damping": 30.0,
    "nullspace_stiffness": 100.0,
    "joint1_nullspace_stiffness": 100.0,
    "translational_Ki": 100.0,
    "rotational_Ki": 100.0,
    **{f"{kind}_clip_{axis}": 0.1 for kind in ("translational", "rotational") for axis in SIGNED_AXES},
}


@pytest.mark.parametrize(("name", "largest"), LARGEST.items())
def test_compliance_is_accepted_within_its_range_only(name, largest):
    for value in (0.0, largest):
        assert FrankaConfig(gripper="none", compliance={name: value}).compliance == {name: value}
    for value, nearest in ((1.01 * largest, largest), (-0.01, 0.0)):
        with pytest.raises(ValidationError, match=rf"{name} is {value:g}, .* Set it to {nearest:g}"):
            FrankaConfig(gripper="none", compliance={name: value})


def test_list_of_compliance_parameters_is_complete():
    assert COMPLIANCE.keys() == LARGEST.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"compliance": {"translation_stiffness": 1.0}},
            "no compliance parameter 'translation_stiffness'. Did you mean",
        ),
        ({"compliance": {"translational_stiffness": float("nan")}}, "translational_stiffness is nan"),
        ({"address": "robot"}, "write HOST:PORT"),
        ({"right_address": "127.0.0.1:5000"}, "both arms have the address"),
        ({"joint_reset_timeout_s": 30.0}, "greater than 41"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        FrankaConfig(gripper="none", **settings)


def test_gripper_family_must_be_given():
    with pytest.raises(ValidationError, match="gripper"):
        FrankaConfig()


def test_spec_of_one_arm_has_the_action_space_of_the_simulated_robot():
    spec = FrankaRobot(FrankaConfig(gripper="serl_robotiq")).spec
    assert spec.action.names == ("dx", "dy", "dz", "drx", "dry", "drz", "gripper")
    assert [part.name for part in spec.parts] == ["arm", "gripper"]
    keys = {"joint_pos", "joint_vel", "ee_pose", "ee_twist", "ee_error", "gripper", "force", "torque"}
    assert set(spec.observation) == keys
    assert FrankaRobot(FrankaConfig(gripper="none")).spec.action.shape == (6,)
    without = FrankaRobot(FrankaConfig(gripper="serl_robotiq", gripper_axis=False)).spec
    assert without.action.shape == (6,) and "gripper" in without.observation


# ---- contract


def test_robot_conforms_to_the_contract(emulate, connect):
    emulator = emulate()
    robot = connect(emulator, control_hz=20.0)
    check_robot(lambda: robot)
    assert isinstance(robot, IndependentStop) and isinstance(robot, HearsAcknowledgement)
    assert isinstance(robot, PreparesReset) and not isinstance(robot, SimulatedRobot)
    assert "/clearerr" not in emulator.endpoints.num_calls


def test_lockstep_robot_conforms_to_the_contract_of_simulated_robots(emulate):
    emulator = emulate(lockstep=True, task="peg_insertion")

    def build():
        task = PegInsertion(InsertionConfig())
        robot = EmulatedFranka(EmulatedFrankaConfig(address=emulator.address), task=task)
        task.reset(robot, rng=np.random.default_rng(0))
        assert isinstance(robot, SimulatedRobot)
        return robot

    check_robot(build)


def test_server_that_closes_each_connection_works_too(emulate, connect):
    robot = connect(emulate(keep_alive=False), control_hz=20.0)
    first = robot.observe()
    robot.send(move(dx=0.005))
    time.sleep(0.05)  # the emulator has a new state after a few milliseconds
    assert robot.observe().time_ns > first.time_ns


def test_one_observation_is_one_request_and_one_command_one_pose(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    robot.observe()
    robot.send(move())
    assert emulator.endpoints.num_calls == {"/getstate": 1, "/pose": 1}


def test_observation_time_is_the_middle_of_the_request(emulate, connect):
    emulator = emulate()
    robot = connect(emulator, timeout_s=1.0)
    robot.observe()
    emulator.misbehave("delay", path="/getstate", seconds=0.2)
    before_ns = time.monotonic_ns()
    observation = robot.observe()
    after_ns = time.monotonic_ns()
    assert observation.time_ns == pytest.approx((before_ns + after_ns) / 2, abs=30e6)


def test_arm_moves_in_the_base_frame_and_reports_equilibrium_minus_pose(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator))
    start = position(emulator)
    observation = drive(safe, move(dy=0.01), seconds=0.6)
    assert observation.values["ee_error"][1] > 0.005
    assert observation.values["ee_error"][1] <= 0.0201
    moved = position(emulator) - start
    assert moved[1] > 0.01 and abs(moved[0]) < 0.005 and abs(moved[2]) < 0.005
    assert observation.values["ee_twist"][1] > 0.01


def test_compliance_and_load_are_sent_once_before_the_first_motion(emulate, connect):
    emulator = emulate()
    robot = connect(
        emulator,
        compliance={"translational_stiffness": 1500.0},
        load={"mass_kg": 0.2, "center_m": (0.0, 0.0, 0.05)},
    )
    robot.observe()
    assert emulator.arm.parameters["translational_stiffness"] == 2000.0
    robot.send(move())
    robot.send(move())
    assert emulator.arm.parameters["translational_stiffness"] == 1500.0
    assert emulator.endpoints.num_calls["/update_param"] == emulator.endpoints.num_calls["/set_load"] == 1


# ---- grippers


@pytest.mark.parametrize("server", ["serl", "hil_serl"])
@pytest.mark.parametrize("gripper", ["robotiq", "franka"])
def test_opening_is_0_closed_and_1_open_in_every_family(emulate, connect, server, gripper):
    robot = connect(emulate(server=server, gripper=gripper), gripper=f"{server}_{gripper}")
    expected = 1 - 175 / 255 if (server, gripper) == ("hil_serl", "robotiq") else 1.0
    robot.observe()
    robot.send(move(gripper=0.0))
    wait_until(lambda: robot.observe().values["gripper"][0] < 0.05)
    assert robot.observe().values["gripper"][1] == 0.0
    time.sleep(0.6)
    robot.send(move(gripper=1.0))
    wait_until(lambda: abs(robot.observe().values["gripper"][0] - expected) < 0.05)
    assert robot.observe().values["gripper"][1] == 1.0


def test_wrong_gripper_family_is_a_fault_that_names_the_setting(emulate, connect):
    robot = connect(emulate(server="hil_serl", gripper="franka"), gripper="serl_franka")
    with pytest.raises(RobotError, match=r"gripper_pos .* serl_franka has 0 to 0.08. Check robot.gripper"):
        robot.observe()


def test_gripper_commands_have_hysteresis_and_a_pause(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    robot.observe()
    for value in (0.5, 0.45, 0.55):  # none of them changes an open gripper
        robot.send(move(gripper=value))
    for value in (0.0, 1.0, 0.0, 1.0, 0.0):  # a nervous policy
        executed = robot.send(move(gripper=value))
        assert executed[6] == value
    calls = emulator.endpoints.num_calls
    assert calls.get("/close_gripper", 0) + calls.get("/open_gripper", 0) == 1


def test_hand_that_ignores_repeated_commands_becomes_a_fault(emulate, connect):
    emulator = emulate()
    robot = connect(emulator, timeout_s=2.0)  # this machine may be busy for seconds
    robot.observe()
    robot.send(move(gripper=0.0))
    wait_until(lambda: robot.observe().values["gripper"][0] < 0.05)
    emulator.misbehave("open_fingers")
    wait_until(lambda: robot.observe().values["gripper"][0] > 0.97)
    with pytest.raises(RobotError, match="the gripper is not closed after 5 commands"):
        drive(robot, move(gripper=0.0), seconds=10.0)


def test_server_without_a_gripper_is_read_by_single_requests(emulate, connect):
    emulator = emulate(gripper="none")
    robot = connect(emulator, gripper="none")
    assert "gripper" not in robot.observe().values
    robot.observe()
    calls = emulator.endpoints.num_calls
    assert calls["/getstate"] == 1 and calls["/getq"] == calls["/getforce"] == 2
    with pytest.raises(RobotError, match=r"answered 500 to /getstate.*set robot.gripper=none"):
        connect(emulator).observe()


# ---- wrong answers


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("error", "answered 500 to /getstate"),
        ("garbage", "something else than JSON"),
        ("half", "answered .* of .* bytes"),
        ("trickle", "did not answer within 0.25 s"),
        ("silent", "did not answer within 0.25 s"),
        ("nan", "sent 'pose' that is not finite"),
        ("wrong_size", "sent 'pose' with 6 values, expected 7 numbers"),
        ("missing", "sent a state without 'pose'"),
        ("huge", "answered more than 1048576 bytes"),
        ("drop", "closed the connection without an answer"),
        ("reset", "closed the connection without an answer"),
    ],
)
def test_wrong_answer_is_an_error_in_one_line(emulate, connect, kind, message):
    emulator = emulate()
    emulator.misbehave(kind, path="/getstate", count=2)
    began_s = time.monotonic()
    with pytest.raises(RobotError, match=message) as caught:
        connect(emulator).observe()
    assert "\n" not in str(caught.value) and emulator.address in str(caught.value)
    assert time.monotonic() - began_s < 1.0


def test_missing_server_is_an_error_in_one_line(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    emulator.close()
    with pytest.raises(RobotError, match="refused the connection: it does not run"):
        robot.observe()
    with pytest.raises(RobotError, match="Use its emergency stop"):
        robot.stop()


def test_connection_that_the_server_closed_meanwhile_is_opened_again(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    robot.observe()
    for kind in ("drop", "reset"):
        emulator.misbehave(kind, path="/getstate")
        robot.observe()


def test_frozen_state_becomes_stale_and_stops_the_robot(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator, control_hz=20.0))
    drive(safe, move(dy=0.01), seconds=0.3)
    emulator.misbehave("freeze")
    with pytest.raises(RobotFault, match=r"the last valid observation is .* old"):
        drive(safe, move(dy=0.01), seconds=2.0)
    emulator.misbehave("thaw")
    wait_until(lambda: speed(emulator) < 0.005)


def test_arm_with_an_error_is_noticed_although_the_server_says_moved(emulate, connect):
    emulator = emulate()
    robot = connect(emulator, control_hz=20.0)
    safe = guarded(robot)
    drive(safe, move(), seconds=0.1)
    emulator.misbehave("arm_error")
    with pytest.raises(RobotFault, match="does not follow"):
        drive(safe, move(dy=0.01), seconds=5.0)
    assert "/clearerr" not in emulator.endpoints.num_calls
    assert emulator.arm.has_error
    safe.acknowledge()
    assert emulator.endpoints.num_calls["/clearerr"] == 1 and not emulator.arm.has_error
    start = position(emulator)
    drive(safe, move(dy=0.01), seconds=0.6)
    assert position(emulator)[1] - start[1] > 0.01


def test_arm_that_pushes_against_the_table_is_no_fault(emulate, connect):
    emulator = emulate()
    safe = SafeRobot(connect(emulator, control_hz=20.0, max_step_m=0.02), SafetyConfig(), RealClock())
    start_z = position(emulator)[2]
    observation = drive(safe, move(dz=-0.02, gripper=0.0), seconds=start_z / 0.09 + 3.0)
    assert position(emulator)[2] < 0.05
    assert np.linalg.norm(observation.values["force"]) > 10.0


def test_failed_acknowledgement_keeps_the_fault(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator))
    drive(safe, move(), seconds=0.1)
    safe.trip("a test")
    emulator.misbehave("error", path="/clearerr")
    safe.acknowledge()
    assert "the acknowledgement failed" in safe.fault and "/clearerr" in safe.fault
    safe.acknowledge()
    assert safe.fault is None


# ---- stop


def moving(emulator, safe):
    """The equilibrium is then 0.02 m ahead: where an arm that is not stopped would come to rest."""
    drive(safe, move(dy=0.01), seconds=0.8)
    assert speed(emulator) > 0.03


def equilibrium(emulator):
    return emulator.arm._impedance._target_position.copy()


def test_stop_holds_the_arm_within_a_second_near_the_place(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    moving(emulator, guarded(robot))
    began_s, place = time.monotonic(), position(emulator)
    robot.stop()
    called_s = time.monotonic() - began_s
    wait_until(lambda: speed(emulator) < 0.005, timeout_s=2.0)
    rest_s = time.monotonic() - began_s
    time.sleep(0.6)
    drift = position(emulator) - place
    assert called_s < 0.2 and rest_s < 1.5
    assert np.abs(drift).max() < 0.012, drift
    assert "/stopimp" not in emulator.endpoints.num_calls


def test_second_stop_holds_the_same_pose(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    moving(emulator, guarded(robot))
    robot.stop()
    target = equilibrium(emulator)
    time.sleep(0.2)
    robot.stop()
    assert (equilibrium(emulator) == target).all()


def test_second_stop_does_not_pull_an_arm_back_that_was_moved_meanwhile(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    moving(emulator, guarded(robot))
    robot.stop()
    wait_until(lambda: speed(emulator) < 0.005, timeout_s=5.0)
    held = position(emulator)
    for _ in range(20):  # a person moves it, or another program
        pose = np.array(emulator.arm.state()["pose"])
        pose[2] += 0.01
        emulator.arm.set_pose(pose)
        time.sleep(0.1)
    moved = position(emulator)
    assert moved[2] - held[2] > 0.05
    robot.stop()
    assert np.abs(equilibrium(emulator) - moved).max() < 0.02


def test_stop_works_from_another_process_without_an_earlier_call(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator))
    moving(emulator, safe)
    ahead = equilibrium(emulator)
    code = (
        "from dovetail.robots.drivers.franka.driver import FrankaRobot as R, FrankaConfig as C\n"
        f"R(C(address='{emulator.address}', gripper='none')).stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (equilibrium(emulator) != ahead).any() and emulator.endpoints.num_calls["/getpos"] == 1
    wait_until(lambda: speed(emulator) < 0.005, timeout_s=2.0)


def test_independent_stop_works_while_another_call_hangs(emulate, connect):
    emulator = emulate()
    robot = connect(emulator, timeout_s=2.0)
    stopper = robot.open_stop()
    moving(emulator, guarded(robot))
    emulator.misbehave("silent", path="/getstate")

    def observe():
        with pytest.raises(RobotError):
            robot.observe()

    hanging = threading.Thread(target=observe)
    hanging.start()
    began_s, place = time.monotonic(), position(emulator)
    stopper.stop()
    assert time.monotonic() - began_s < 0.2
    assert np.abs(equilibrium(emulator) - place).max() < 0.01
    wait_until(lambda: speed(emulator) < 0.005, timeout_s=2.0)
    hanging.join()
    stopper.close()


def test_stop_switches_the_controller_off_if_the_pose_is_refused_and_acknowledging_starts_it(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    safe = guarded(robot)
    moving(emulator, safe)
    emulator.misbehave("error", path="/pose", count=2)
    safe.trip("a test")
    assert emulator.arm.mode == "idle"
    wait_until(lambda: speed(emulator) < 0.005, timeout_s=2.0)
    safe.acknowledge()
    assert emulator.arm.mode == "impedance" and emulator.endpoints.num_calls["/startimp"] == 1


def test_open_stop_refuses_a_server_that_does_not_answer(emulate, connect):
    emulator = emulate()
    robot = connect(emulator)
    emulator.close()
    with pytest.raises(RobotError, match="refused the connection"):
        robot.open_stop()


# ---- joint reset


def tick_of(*emulators):
    """A tick of 0.1 s in the emulators, which are in lockstep."""

    def tick():
        for emulator in emulators:
            emulator.arm.advance_ns(100_000_000)

    return tick


def prepare(robot, *emulators, tick=None, **safety):
    """A guarded robot after its preparation of a reset."""
    safe = SafeRobot(robot, SafetyConfig(**safety), RealClock())
    safe.prepare_reset(tick=tick or tick_of(*emulators))
    return safe


def test_joint_reset_happens_only_if_configured(emulate, connect):
    emulator = emulate(lockstep=True)
    never, second = connect(emulator), connect(emulator, joint_reset_every=2)
    prepare(never, emulator)
    assert "/jointreset" not in emulator.endpoints.num_calls
    safe = prepare(second, emulator)
    assert emulator.endpoints.num_calls["/jointreset"] == 1
    for num_resets in (1, 2):
        safe.prepare_reset(tick=tick_of(emulator))
        assert emulator.endpoints.num_calls["/jointreset"] == num_resets
    assert np.allclose(second.observe().values["joint_pos"], emulator.config.reset_joints, atol=0.02)
    assert np.allclose(second.observe().values["ee_error"], 0.0)


def test_joint_reset_is_never_repeated_after_a_lost_connection(emulate, connect):
    emulator = emulate(lockstep=True)
    robot = connect(emulator, joint_reset_every=1)
    emulator.misbehave("drop", path="/jointreset")
    with pytest.raises(RobotFault, match="closed the connection without an answer"):
        prepare(robot, emulator)
    assert "/jointreset" not in emulator.endpoints.num_calls


def test_no_joint_reset_clears_an_error_that_nobody_has_seen(emulate, connect):
    emulator = emulate(lockstep=True)
    safe = SafeRobot(connect(emulator, joint_reset_every=1), SafetyConfig(), RealClock())
    safe.observe()
    emulator.misbehave("arm_error")  # after the last observation
    with pytest.raises(RobotFault, match=r"does not follow: "):
        safe.prepare_reset(tick=tick_of(emulator))
    assert emulator.arm.has_error
    assert not {"/jointreset", "/clearerr"} & set(emulator.endpoints.num_calls)
    safe.acknowledge()
    assert emulator.endpoints.num_calls["/clearerr"] == 1 and safe.fault is None
    safe.prepare_reset(tick=tick_of(emulator))
    assert emulator.endpoints.num_calls["/jointreset"] == 1


@pytest.mark.extended
def test_second_arm_with_an_error_is_not_reset(emulate, connect):
    left, right = emulate(lockstep=True), emulate(lockstep=True, host="127.0.0.2")
    robot = connect(left, right, joint_reset_every=1)
    robot.observe()
    right.misbehave("arm_error")
    with pytest.raises(RobotFault, match=r"127.0.0.2:\d+ does not follow"):
        prepare(robot, left, right)
    assert left.endpoints.num_calls["/jointreset"] == 1
    assert right.arm.has_error and "/jointreset" not in right.endpoints.num_calls


def test_lift_before_a_joint_reset_stays_in_the_workspace(emulate, connect):
    emulator = emulate(lockstep=True)
    robot = connect(emulator, joint_reset_every=1)
    robot.observe()
    top_m, heights_m = position(emulator)[2] + 0.001, []

    def tick():
        heights_m.append(equilibrium(emulator)[2])
        tick_of(emulator)()

    with pytest.raises(RobotFault, match=r"safety filter lets the arm .* rise by 0\.001 m only"):
        prepare(robot, tick=tick, workspace={"low": (0.0, -0.5, 0.0), "high": (0.8, 0.5, top_m)})
    assert 0.0 < max(heights_m) < top_m + 1e-6
    assert "/jointreset" not in emulator.endpoints.num_calls


def test_guard_sees_the_lift_before_a_joint_reset(emulate, connect):
    emulator = emulate(lockstep=True)
    safe = SafeRobot(connect(emulator, joint_reset_every=1), SafetyConfig(), RealClock())
    seen = []
    safe.report_measurements(lambda observation: seen.append(observation.values["ee_pose"][2]))
    safe.prepare_reset(tick=tick_of(emulator))
    assert len(seen) > 1 and seen[-1] > seen[0] + 0.001


def test_stop_during_the_lift_prevents_the_joint_reset(emulate, connect):
    emulator = emulate(lockstep=True)
    safe = SafeRobot(connect(emulator, joint_reset_every=1), SafetyConfig(), RealClock())
    pressed = []
    safe.refuse_while(lambda: pressed[0] if pressed else None)
    with pytest.raises(RobotFault, match="pressed in a test"):
        safe.prepare_reset(tick=lambda: (tick_of(emulator)(), pressed.append("pressed in a test")))
    assert "/jointreset" not in emulator.endpoints.num_calls
    assert np.allclose(equilibrium(emulator), position(emulator), atol=1e-3)


def test_end_of_the_run_during_the_lift_is_no_fault(emulate, connect):
    emulator = emulate(lockstep=True)
    safe = SafeRobot(connect(emulator, joint_reset_every=1), SafetyConfig(), RealClock())

    def tick():
        raise StopRequested

    with pytest.raises(StopRequested):
        safe.prepare_reset(tick=tick)
    assert safe.fault is None and "/jointreset" not in emulator.endpoints.num_calls


def test_stop_after_a_joint_reset_holds_the_new_place(emulate, connect):
    emulator = emulate(lockstep=True)
    robot = connect(emulator, joint_reset_every=1)
    robot.observe()
    robot.stop()
    robot.send(move(dy=0.01))
    emulator.arm.advance_ns(500_000_000)
    robot.stop()
    prepare(robot, emulator)
    robot.stop()  # without a command since
    assert np.allclose(equilibrium(emulator), position(emulator), atol=1e-3)


def test_no_joint_reset_after_a_fault(emulate, connect):
    emulator = emulate(lockstep=True)
    safe = SafeRobot(connect(emulator, joint_reset_every=1), SafetyConfig(), RealClock())
    safe.trip("a test")
    with pytest.raises(RobotFault, match="a test"):
        safe.prepare_reset(tick=tick_of(emulator))
    assert "/jointreset" not in emulator.endpoints.num_calls


@pytest.mark.extended
def test_stop_during_a_joint_reset_says_that_it_cannot_stop_it(emulate, connect):
    emulator = emulate(time_scale=20.0)
    robot = connect(emulator, joint_reset_every=1, timeout_s=2.0)
    safe = SafeRobot(robot, SafetyConfig(), RealClock())
    resetting = threading.Thread(target=safe.prepare_reset, kwargs={"tick": lambda: time.sleep(0.02)})
    resetting.start()
    wait_until(lambda: emulator.arm.mode == "joints")
    with pytest.raises(
        RobotError, match=r"a joint reset cannot be stopped over HTTP. Use the arm's emergency stop"
    ):
        robot.stop()
    resetting.join()
    robot.stop()


# ---- two arms


def test_two_arms_are_one_robot(emulate, connect):
    left, right = emulate(), emulate(host="127.0.0.2")
    robot = connect(left, right, control_hz=20.0)
    assert [part.name for part in robot.spec.parts] == ["left_arm", "left_gripper", "right_arm", "right_gripper"]
    check_robot(lambda: robot)
    safe = guarded(robot)
    starts = position(left), position(right)
    action = np.concatenate((move(dy=0.01), move(dy=-0.01)))
    observation = drive(safe, action, seconds=0.8)
    assert (position(left) - starts[0])[1] > 0.01 and (position(right) - starts[1])[1] < -0.01
    assert observation.values["ee_pose"].shape == (14,) and observation.values["force"].shape == (6,)
    robot.stop()
    wait_until(lambda: speed(left) < 0.005 and speed(right) < 0.005, timeout_s=2.0)


def test_one_arm_stops_although_the_server_of_the_other_is_gone(emulate, connect):
    left, right = emulate(), emulate()
    robot = connect(left, right)
    drive(guarded(robot), np.concatenate((move(dy=0.01), move(dy=0.01))), seconds=0.8)
    left.close()
    with pytest.raises(RobotError, match="Use its emergency stop"):
        robot.stop()
    wait_until(lambda: speed(right) < 0.005, timeout_s=2.0)


# ---- random faults


FAULTS = (*KINDS, "freeze", "arm_error")


def run_faults(emulator, safe, *, count, seed):
    """Random commands while random answers are wrong. Returns how many faults ended in a stop."""
    rng = np.random.default_rng(seed)
    calls_s, num_stops, fastest = [], 0, 0.0
    for _ in range(count):
        kind = str(rng.choice(FAULTS))
        settings = (
            {}
            if kind in ("freeze", "arm_error")
            else {
                "path": str(rng.choice(["*", "/getstate", "/pose", "/getpos"])),
                "count": int(rng.integers(1, 5)),
                "seconds": float(rng.uniform(0.0, 0.3)),
            }
        )
        emulator.misbehave(kind, **settings)
        direction = rng.uniform(-1.0, 1.0, 7) * np.array([0.02, 0.02, 0.02, 0.05, 0.05, 0.05, 1.0])
        try:
            for _ in range(8):
                began_s = time.monotonic()
                safe.observe()
                safe.send(direction)
                calls_s.append(time.monotonic() - began_s)
                here = position(emulator)
                assert (here > np.array(BOX.low) - 0.02).all() and (here < np.array(BOX.high) + 0.02).all(), here
                fastest = max(fastest, speed(emulator))
                time.sleep(0.02)
        except RobotFault:
            num_stops += 1
            calls_s.append(time.monotonic() - began_s)
            with pytest.raises(RobotFault, match="Acknowledge the fault first"):
                safe.send(direction)
        emulator.misbehave("clear")
        emulator.misbehave("thaw")
        if safe.fault is None and emulator.arm.has_error:
            safe.trip("the arm has an error")
        if safe.fault is not None:
            # an arm whose server did not get the stop moves on by the lead at most, which is 0.02 m
            place = position(emulator)
            wait_until(lambda: speed(emulator) < 0.02, timeout_s=3.0, what="rest after a fault")
            assert np.abs(position(emulator) - place).max() < 0.03
            safe.acknowledge()
            assert safe.fault is None
    assert max(calls_s) < 2.0, "a call hung"
    assert fastest < 0.6
    return num_stops


def test_random_faults_end_in_hold_or_stop(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator, control_hz=20.0, max_step_m=0.02, timeout_s=0.1))
    assert run_faults(emulator, safe, count=15, seed=0) >= 3


@pytest.mark.extended
def test_200_random_faults_end_in_hold_or_stop(emulate, connect):
    emulator = emulate()
    safe = guarded(connect(emulator, control_hz=20.0, max_step_m=0.02, timeout_s=0.1))
    assert run_faults(emulator, safe, count=200, seed=1) >= 60
