"""The safety filter lets only safe actions pass."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.contracts import GuardedRobot
from dovetail.core.errors import ConfigError, RobotFault, SpecMismatch, StaleObservation, UsageError
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation
from dovetail.robots.safety import Reason, SafeRobot, SafetyConfig, Workspace
from dovetail.testing.fakes import FakeBimanual, FakeBimanualConfig

TICK_NS = NS_PER_S // 10
LOW, HIGH = (0.3, -0.2, 0.05), (0.6, 0.2, 0.4)
BOX = Workspace(low=LOW, high=HIGH)
IDENTITY = (1.0, 0.0, 0.0, 0.0)


class Probe:
    """A robot that accepts and records every command."""

    def __init__(self, kind: str = "ee_delta", **observation: tuple[float, ...]) -> None:
        if not observation and kind == "ee_delta":
            observation = {"ee_pose": (0.4, 0.0, 0.2, *IDENTITY), "gripper": (0.5,)}
        elif not observation:
            observation = {"joint_pos": (0.0,) * 7}
        self.values: dict[str, Any] = {k: np.array(v, np.float32) for k, v in observation.items()}
        low = (-0.02,) * 3 + (-0.1,) * 3 if kind == "ee_delta" else (-2.0,) * 7
        names = ("x", "y", "z", "rx", "ry", "rz") if kind == "ee_delta" else tuple(f"j{i}" for i in range(7))
        self.spec = RobotSpec(
            name="probe",
            embodiment="probe",
            observation={k: ArraySpec(shape=v.shape) for k, v in self.values.items()},
            action=ArraySpec(
                shape=(len(low) + 1,),
                names=(*names, "gripper"),
                low=(*low, 0.0),
                high=(*(-x for x in low), 1.0),
            ),
            action_kind=kind,
            control_hz=10.0,
        )
        self.time_ns = 0
        self.sent: list[Array] = []
        self.num_stops = 0
        self.broken: Exception | None = None

    def observe(self) -> Observation:
        return Observation(time_ns=self.time_ns, values={k: v.copy() for k, v in self.values.items()})

    def send(self, action: Array) -> Array:
        if self.broken:
            raise self.broken
        self.sent.append(action.copy())
        return action

    def stop(self) -> None:
        self.num_stops += 1

    def advance(self, duration_ns: int) -> None:
        self.time_ns += duration_ns


def wrap(probe: Any, *, observe: bool = True, **config: Any) -> tuple[SafeRobot, SimulatedClock]:
    clock = SimulatedClock()
    clock.on_advance(probe.advance)
    safe = SafeRobot(probe, SafetyConfig(**config), clock)
    if observe:
        safe.observe()
    return safe, clock


def tick(clock: SimulatedClock, num: float = 1) -> None:
    clock.sleep_until(clock.now_ns() + round(num * TICK_NS))


def rotation(quat: Array) -> npt.NDArray[np.float64]:
    w, v = float(quat[0]), np.asarray(quat[1:], np.float64)
    cross = np.array(((0, -v[2], v[1]), (v[2], 0, -v[0]), (-v[1], v[0], 0)))
    return np.asarray((w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross)


# ---- arbitrary commands


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.floats(-0.1, 0.1) | st.floats(-3, 3)
unit = hnp.arrays(np.float64, 4, elements=st.floats(-1, 1)).filter(lambda q: float(np.linalg.norm(q)) > 0.1)


@settings(max_examples=300, deadline=None)
@given(
    action=hnp.arrays(np.float64, 7, elements=numbers),
    position=hnp.arrays(np.float64, 3, elements=st.floats(-1, 1)),
    ahead=hnp.arrays(np.float64, 3, elements=st.floats(-0.03, 0.03)),
    quat=unit,
    step=st.none() | st.floats(0.001, 0.05),
)
def test_deltas_stay_finite_within_limits_and_never_lead_out_of_the_box(
    action: Array, position: Array, ahead: Array, quat: Array, step: float | None
) -> None:
    quat = quat / np.linalg.norm(quat)
    probe = Probe(ee_pose=(*position, *quat), ee_error=(*ahead, 0, 0, 0))
    safe, _ = wrap(probe, workspace=BOX, max_step=step)
    executed = safe.send(action)
    (sent,) = probe.sent
    assert sent.dtype == np.float32
    assert np.isfinite(sent).all()
    np.testing.assert_array_equal(executed, sent)
    low, high = probe.spec.action.bounds
    assert (sent >= low).all()
    assert (sent <= high).all()
    if step is not None:
        assert (np.abs(sent[:6]) <= step + 1e-6).all()
    frame = rotation(probe.values["ee_pose"][3:])
    moved = frame @ sent[:3].astype(np.float64)
    here = probe.values["ee_pose"][:3].astype(np.float64)
    for start in (here, here + frame @ probe.values["ee_error"][:3]):
        for axis in range(3):
            end = start[axis] + moved[axis]
            assert min(LOW[axis], start[axis]) - 1e-6 <= end <= max(HIGH[axis], start[axis]) + 1e-6
    report = safe.last_report
    assert report.held == (not (np.abs(action) <= np.finfo(np.float32).max).all())
    if not report.held:
        far = np.abs(sent - action) > 1e-5 * np.maximum(1.0, np.abs(action))
        assert (report.clipped >= far).all()
        assert report.reasons or not report.clipped.any()


@settings(max_examples=300, deadline=None)
@given(
    action=hnp.arrays(np.float64, 8, elements=numbers),
    joints=hnp.arrays(np.float64, 7, elements=st.floats(-3, 3)),
    step=st.floats(0.001, 1.0),
)
def test_joint_targets_stay_near_the_measured_joints(action: Array, joints: Array, step: float) -> None:
    probe = Probe("joint_target", joint_pos=tuple(joints))
    safe, _ = wrap(probe, max_step=step)
    safe.send(action)
    (sent,) = probe.sent
    measured = probe.values["joint_pos"].astype(np.float64)
    assert np.isfinite(sent).all()
    assert (np.abs(sent[:7] - measured) <= step + 1e-6).all()
    assert 0.0 <= sent[7] <= 1.0
    # within limits, or nearer to them than the joint is
    assert ((np.abs(sent[:7]) <= 2.0) | (np.abs(sent[:7]) < np.abs(measured))).all()


@settings(max_examples=100, deadline=None)
@given(action=hnp.arrays(np.float64, 24, elements=numbers), seed=st.integers(0, 99))
def test_bimanual_joint_targets_are_limited(action: Array, seed: int) -> None:
    robot = FakeBimanual(FakeBimanualConfig(image_size=(8, 6)))
    state = np.random.default_rng(seed).uniform(-1.4, 1.4, 24)
    robot.place(state, state)
    safe, _ = wrap(robot)
    executed = safe.send(action)
    assert np.isfinite(executed).all()
    assert (np.abs(executed - state) <= 1.75 / 20 + 1e-6).all()


@settings(max_examples=100, deadline=None)
@given(action=hnp.arrays(np.float64, 3, elements=numbers), bounded=st.booleans())
def test_unknown_action_kind_is_clipped_to_the_spec(action: Array, bounded: bool) -> None:
    probe = Probe(state=(0.0,))
    limits: dict[str, Any] = {"low": (0.5, -2.0, -1.0), "high": (1.0, 2.0, 1.0)} if bounded else {}
    probe.spec = RobotSpec(
        name="gym",
        embodiment="gym",
        observation=probe.spec.observation,
        action=ArraySpec(shape=(3,), **limits),
        action_kind="gym",
        control_hz=10.0,
    )
    safe, _ = wrap(probe)
    sent = safe.send(action)
    low, high = probe.spec.action.bounds
    assert np.isfinite(sent).all()
    assert (sent >= low).all()
    assert (sent <= high).all()


# ---- numbers worked out by hand


def test_delta_is_rotated_into_the_base_frame() -> None:
    """Pointing down (half a turn about x), +z of the action is down in the world; the floor is at 0.195."""
    probe = Probe(ee_pose=(0.4, 0.0, 0.2, 0.0, 1.0, 0.0, 0.0))
    safe, _ = wrap(probe, workspace=Workspace(low=(0.3, -0.2, 0.195), high=HIGH))
    executed = safe.send(np.array([0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 1.0]))
    np.testing.assert_allclose(executed, [0, 0, 0.005, 0, 0, 0, 1], atol=1e-7)
    assert safe.last_report.reasons is Reason.WORKSPACE
    np.testing.assert_array_equal(safe.last_report.clipped, [0, 0, 1, 0, 0, 0, 0])
    executed = safe.send(np.array([0.0, 0.0, -0.02, 0.0, 0.0, 0.0, 1.0]))
    np.testing.assert_allclose(executed[2], -0.02)
    assert not safe.last_report.reasons


def test_action_frame_is_the_reset_pose() -> None:
    probe = Probe(ee_pose=(0.4, 0.0, 0.2, 0.0, 1.0, 0.0, 0.0))
    safe, clock = wrap(probe, workspace=Workspace(low=(0.3, -0.2, 0.195), high=HIGH))
    tick(clock)
    probe.values["ee_pose"][3:] = IDENTITY  # the hand has turned since
    safe.observe()
    down = np.array([0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 1.0])
    assert safe.send(down)[2] == pytest.approx(0.005)
    safe.reset()  # from here on, that is the reset pose
    safe.observe()
    assert safe.send(down)[2] == pytest.approx(0.02)


def test_outside_the_box_only_motion_inwards_is_allowed() -> None:
    probe = Probe(ee_pose=(0.65, 0.0, 0.2, *IDENTITY))
    safe, _ = wrap(probe, workspace=BOX)
    assert safe.send(np.array([0.02, 0.01, 0, 0, 0, 0, 1]))[0] == 0.0
    np.testing.assert_allclose(safe.send(np.array([-0.02, 0.01, 0, 0, 0, 0, 1]))[:2], [-0.02, 0.01], rtol=1e-6)


def test_leading_reference_stays_in_the_box() -> None:
    probe = Probe(ee_pose=(0.58, 0.0, 0.2, *IDENTITY), ee_error=(0.015, 0, 0, 0, 0, 0))
    safe, _ = wrap(probe, workspace=BOX)
    assert safe.send(np.array([0.02, 0, 0, 0, 0, 0, 1]))[0] == pytest.approx(0.005, abs=1e-6)


def test_smaller_of_step_and_velocity_limit_counts() -> None:
    asked = np.full(8, 1.0)
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, 0.175),
        ({"max_step": 0.05}, 0.05),
        ({"max_step": 0.3, "max_velocity": 1.0}, 0.1),
    ]
    for config, step in cases:
        safe, _ = wrap(Probe("joint_target"), **config)
        np.testing.assert_allclose(safe.send(asked), [step] * 7 + [1.0], rtol=1e-6)
        assert safe.last_report.reasons == Reason.STEP
        np.testing.assert_array_equal(safe.last_report.clipped, [True] * 7 + [False])
    safe, _ = wrap(Probe("joint_target"), max_step=tuple(0.01 * (i + 1) for i in range(7)))
    np.testing.assert_allclose(safe.send(asked)[:7], 0.01 * np.arange(1, 8), rtol=1e-6)


def test_joint_beyond_its_limit_returns_in_steps() -> None:
    safe, _ = wrap(Probe("joint_target", joint_pos=(2.5, 2.05, 0, 0, 0, 0, 0)), max_step=0.1)
    np.testing.assert_allclose(safe.send(np.full(8, 9.0))[:2], [2.4, 2.0], rtol=1e-6)


def test_safety_report_is_recorded_as_extras() -> None:
    safe, _ = wrap(Probe(), max_step=0.01)
    safe.send(np.array([0.5, 0.0, 0.015, 0.0, 0.0, 0.0, 0.0]))
    extras = safe.last_report.extras()
    np.testing.assert_array_equal(extras["safety_clipped"], [1, 0, 1, 0, 0, 0, 0])
    assert extras["safety_reasons"] == Reason.LIMIT | Reason.STEP
    assert not extras["safety_held"]
    before = safe.last_report
    safe.send(np.zeros(7))
    assert before.clipped[0]  # an old report does not change
    assert not safe.last_report.clipped.any()


# ---- holding, faults


NAN = np.full(7, np.nan)


def test_non_finite_actions_hold_then_latch_a_fault() -> None:
    probe = Probe()
    safe, clock = wrap(probe, max_bad_actions=3)
    safe.send(np.array([0.01, 0, 0, 0, 0, 0, 0.2]))
    for bad in (np.nan, -np.inf):
        held = safe.send(np.array([0.01, 0, bad, 0, 0, 0, 1.0]))
        np.testing.assert_allclose(held, [0, 0, 0, 0, 0, 0, 0.2])
        assert safe.last_report.held
        assert safe.last_report.reasons == Reason.NON_FINITE
    safe.send(np.zeros(7))  # a good one in between: they are counted in a row
    safe.send(NAN)
    safe.send(NAN)
    assert safe.num_bad_actions == 4
    with pytest.raises(RobotFault, match="not finite"):
        safe.send(NAN)
    assert (probe.num_stops, safe.fault is not None) == (1, True)
    num_sent = len(probe.sent)
    for _ in range(3):
        tick(clock)
        safe.observe()
        with pytest.raises(RobotFault, match="Acknowledge"):
            safe.send(np.zeros(7))
    safe.reset()
    safe.observe()
    with pytest.raises(RobotFault):  # a reset does not wipe a fault away
        safe.send(np.zeros(7))
    assert len(probe.sent) == num_sent
    safe.acknowledge()
    with pytest.raises(StaleObservation):  # and going on starts with a look
        safe.send(np.zeros(7))
    safe.observe()
    safe.send(np.zeros(7))
    assert len(probe.sent) == num_sent + 1


def test_hold_sends_the_holding_action() -> None:
    probe = Probe()
    safe, clock = wrap(probe)
    safe.send(np.array([0.01, 0, 0, 0, 0, 0, 0.2]))
    np.testing.assert_allclose(safe.hold(), [0, 0, 0, 0, 0, 0, 0.2])
    assert safe.last_report.held
    assert not safe.last_report.clipped.any()
    tick(clock, 5)
    safe.hold()  # standing still needs no news, but not for ever
    tick(clock, 6)
    with pytest.raises(RobotFault):
        safe.hold()
    with pytest.raises(RobotFault):
        safe.hold()


def test_first_hold_keeps_the_measured_gripper() -> None:
    safe, _ = wrap(Probe())
    np.testing.assert_allclose(safe.send(NAN), [0, 0, 0, 0, 0, 0, 0.5])


def test_joint_hold_is_the_measured_joints() -> None:
    joints = (0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7)
    probe = Probe("joint_target", joint_pos=joints)
    safe, clock = wrap(probe)
    safe.send(np.array([*joints, 0.25]))
    np.testing.assert_allclose(safe.send(np.full(8, np.nan)), [*joints, 0.25], rtol=1e-6)
    tick(clock)
    probe.values["joint_pos"][:] += 0.05
    safe.observe()
    np.testing.assert_allclose(safe.send(np.full(8, np.nan))[:7], np.array(joints) + 0.05, rtol=1e-5)


@pytest.mark.parametrize(
    "action", [np.zeros(6), np.zeros((1, 7)), np.float32(0), np.array(["x"] * 7), [[1], [1, 2]]]
)
def test_wrong_shapes_are_refused(action: Any) -> None:
    probe = Probe()
    safe, _ = wrap(probe)
    with pytest.raises(UsageError, match="probe"):
        safe.send(action)
    assert not probe.sent


def test_command_before_an_observation_raises() -> None:
    probe = Probe()
    safe, _ = wrap(probe, observe=False)
    with pytest.raises(StaleObservation, match="observe"):
        safe.send(np.zeros(7))
    assert (probe.sent, probe.num_stops, safe.last_report.held) == ([], 1, True)
    assert safe.last_report.reasons == Reason.NO_OBSERVATION


def test_old_observation_holds_then_stops() -> None:
    probe = Probe()
    safe, clock = wrap(probe, stale_after_s=0.25, stop_after_s=0.55)
    move = np.array([0.01, 0, 0, 0, 0, 0, 1.0])
    for age, reasons in ((0, Reason.NONE), (2, Reason.NONE), (3, Reason.STALE), (5, Reason.STALE)):
        clock.sleep_until(age * TICK_NS)
        assert safe.send(move)[0] == (0.0 if reasons else np.float32(0.01))
        assert safe.last_report.reasons == reasons
    tick(clock)
    with pytest.raises(RobotFault, match=r"0.60 s old"):
        safe.send(move)
    assert probe.num_stops == 1
    assert safe.last_report.reasons == Reason.STALE | Reason.FAULT


@pytest.mark.parametrize("frozen", ["time", "values"])
def test_frozen_or_nan_sensor_becomes_stale(frozen: str) -> None:
    probe = Probe()
    safe, clock = wrap(probe)
    move = np.array([0.005, 0, 0, 0, 0, 0, 1.0])
    if frozen == "time":
        probe.advance = lambda duration_ns: None  # type: ignore[method-assign]
        clock = SimulatedClock()
        safe = SafeRobot(probe, SafetyConfig(), clock)
        safe.observe()
    else:
        probe.values["ee_pose"][1] = np.nan
    held = []
    for _ in range(10):
        tick(clock)
        safe.observe()
        held.append(safe.send(move)[0] == 0.0)
    assert held == ([False] * 3 + [True] * 7 if frozen == "time" else [True] * 10)
    tick(clock)
    safe.observe()
    with pytest.raises(RobotFault, match=r"ee_pose|1\.10 s old"):
        safe.send(move)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda values: values.pop("gripper"), "missing"),
        (lambda values: values.update(gripper=np.zeros(2, np.float32)), "shape"),
        (lambda values: values["gripper"].fill(np.inf), "finite"),
    ],
)
def test_missing_sensor_is_a_problem(break_it: Any, message: str) -> None:
    probe = Probe()
    safe, clock = wrap(probe)
    break_it(probe.values)
    tick(clock)
    safe.observe()
    assert safe.send(np.array([0.01, 0, 0, 0, 0, 0, 1.0]))[0] == 0.0
    assert safe.last_report.reasons == Reason.BAD_OBSERVATION
    safe.acknowledge()
    safe.observe()
    with pytest.raises(StaleObservation, match=message):
        safe.send(np.zeros(7))


def test_zero_quaternion_is_a_problem() -> None:
    probe = Probe(ee_pose=(0.4, 0, 0.2, 0, 0, 0, 0))
    safe, _ = wrap(probe, workspace=BOX)
    with pytest.raises(StaleObservation, match="quaternion"):
        safe.send(np.zeros(7))


@pytest.mark.parametrize("stop_works", [True, False])
def test_failing_send_stops_and_latches_a_fault(stop_works: bool) -> None:
    probe = Probe()
    safe, _ = wrap(probe)
    probe.broken = OSError("cable")
    if not stop_works:
        probe.stop = lambda: (_ for _ in ()).throw(OSError("also"))  # type: ignore[method-assign]
    with pytest.raises(RobotFault, match="cable" if stop_works else "also") as caught:
        safe.send(np.zeros(7))
    assert isinstance(caught.value.__cause__, OSError)
    probe.broken = None
    with pytest.raises(RobotFault):
        safe.send(np.zeros(7))
    assert not probe.sent


def test_failing_observe_stops_and_latches_a_fault() -> None:
    probe = Probe()
    safe, _ = wrap(probe)
    probe.observe = lambda: dict[str, Any]()["camera"]  # type: ignore[method-assign]
    with pytest.raises(RobotFault, match="camera"):
        safe.observe()
    assert probe.num_stops == 1


def test_invalid_executed_action_latches_a_fault() -> None:
    probe = Probe()
    safe, _ = wrap(probe)
    probe.send = lambda action: np.zeros(3)  # type: ignore[method-assign]
    with pytest.raises(RobotFault, match="executed"):
        safe.send(np.zeros(7))


def test_stop_may_be_called_twice() -> None:
    safe, _ = wrap(Probe())
    safe.stop()
    safe.stop()
    assert safe.fault is None


@pytest.mark.parametrize(
    ("kind", "config", "error"),
    [
        ("joint_target", {"workspace": BOX}, ConfigError),
        ("joint_target", {"max_step": (0.1, 0.2)}, ConfigError),
        ("joint_target", {"max_velocity": -1.0}, ConfigError),
        ("joint_target", {"joint_key": "elsewhere"}, SpecMismatch),
        ("ee_delta", {"workspace": BOX, "ee_pose_key": "elsewhere"}, SpecMismatch),
        ("ee_delta", {"hold_action": (0.0,)}, ConfigError),
        ("ee_delta", {"stale_after_s": 2.0, "stop_after_s": 1.0}, ConfigError),
    ],
)
def test_invalid_settings_are_rejected(kind: str, config: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        wrap(Probe(kind), **config)


def test_no_public_way_around_the_filter() -> None:
    probe = Probe()
    safe, clock = wrap(probe)
    assert isinstance(safe, GuardedRobot)
    assert not hasattr(safe, "advance")
    for name in dir(safe):
        if not name.startswith("_"):
            value = getattr(safe, name)
            assert value is not probe, name
            assert value is not clock, name
            assert getattr(value, "__self__", safe) is safe, name


def test_actions_are_copied() -> None:
    probe = Probe()
    kept: list[Array] = []
    probe.send = lambda action: kept.append(action) or action  # type: ignore[method-assign, func-returns-value]
    safe, _ = wrap(probe)
    asked = np.array([0.01, 0, 0, 0, 0, 0, 1.0], np.float32)
    executed = safe.send(asked)
    asked[:] = 9
    executed[:] = 8
    np.testing.assert_allclose(kept[0], [0.01, 0, 0, 0, 0, 0, 1.0])


def test_filter_is_fast_enough() -> None:
    probe = Probe()
    safe, _ = wrap(probe, workspace=BOX, max_step=0.03)
    action = np.array([0.1, 0.01, -0.1, 0, 0, 0, 1.0], np.float32)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            safe.send(action)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 200e-6, f"{best * 1e6:.0f} us"  # 50 us is the aim; a busy machine may be slower


def test_no_command_passes_while_there_is_a_stop_reason() -> None:
    probe = Probe()
    robot, _ = wrap(probe)
    pressed: list[str] = []
    robot.refuse_while(lambda: pressed[0] if pressed else None)
    robot.send(np.zeros(7, np.float32))
    pressed.append("the button was pressed")
    for command in (lambda: robot.send(np.zeros(7, np.float32)), robot.hold, robot.ease):
        with pytest.raises(RobotFault, match="button was pressed"):
            command()
    assert (len(probe.sent), probe.num_stops) == (1, 1)
    pressed.clear()
    with pytest.raises(RobotFault, match="Acknowledge"):
        robot.hold()  # latched
    robot.acknowledge()
    robot.observe()
    robot.hold()
    assert len(probe.sent) == 2


def test_driver_that_returns_nothing_is_told_what_to_return() -> None:
    class Forgetful(Probe):
        def send(self, action: Array) -> Array:
            super().send(action)
            return None  # type: ignore[return-value]

    robot = SafeRobot(Forgetful(), SafetyConfig(), SimulatedClock())
    robot.observe()
    with pytest.raises(RobotFault, match=r"send\(\) must return the executed action, float32\[7\]"):
        robot.send(np.zeros(7, np.float32))
