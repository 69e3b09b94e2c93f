"""LiveArm and FaultyPolicy keep the contracts."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dovetail.core.contracts import SimulatedRobot
from dovetail.core.types import ActContext, WeightSnapshot
from dovetail.testing import check_policy, check_robot
from dovetail.testing.live import FaultyPolicy, FaultyPolicyConfig, LiveArm, LiveArmConfig, read_journal

STILL = np.zeros(7, np.float32)


@pytest.fixture
def make(tmp_path):
    made, before = [], set(threading.enumerate())

    def make(**config):
        made.append(LiveArm(LiveArmConfig(journal=str(tmp_path / "journal"), **config)))
        return made[-1]

    yield make
    for arm in made:
        arm.close()
    assert set(threading.enumerate()) <= before


def test_live_arm_passes_check_robot(make):
    check_robot(lambda: make(image_size=(8, 6)))
    assert not isinstance(make(), SimulatedRobot)


def test_constructor_does_no_io(make, tmp_path):
    before = threading.active_count()
    make(image_size=(8, 6))
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_journal_has_every_command(make, tmp_path):
    arm = make()
    before_ns = time.monotonic_ns()
    for action in (STILL, STILL + 0.01):
        arm.send(action)
    arm.stop()
    still, moving, stop = read_journal(tmp_path / "journal")
    assert (still.what, moving.what, stop.what) == ("send", "send", "stop")
    assert (still.moves, moving.moves, stop.moves) == (False, True, False)
    assert before_ns < still.time_ns < moving.time_ns < stop.time_ns < time.monotonic_ns()


@pytest.mark.parametrize(("watchdog_s", "bites"), [(0.05, True), (10.0, False), (None, False)])
def test_watchdog_stops_the_arm_without_commands(make, tmp_path, watchdog_s, bites):
    arm = make(watchdog_s=watchdog_s)
    arm.send(STILL)
    time.sleep(0.1)
    arm.observe()
    arm.observe()
    sent, *bitten = read_journal(tmp_path / "journal")
    assert [note.what for note in bitten] == ["watchdog"] * bites
    assert all(note.time_ns - sent.time_ns == pytest.approx(0.05e9, abs=0.02e9) for note in bitten)


def test_camera_runs_until_it_freezes(make):
    arm = make(image_size=(8, 6), camera_hz=100.0, freeze_camera_after_s=0.2)
    seen = {}
    began_s = time.monotonic()
    while time.monotonic() - began_s < 0.4:
        observation = arm.observe()
        frame, captured_ns = observation.values["front"], observation.captured_ns["front"]
        assert captured_ns <= time.monotonic_ns()
        assert seen.setdefault(captured_ns, frame[0, 0, 0]) == frame[0, 0, 0]
        assert np.all(frame == frame[0, 0, 0])
        time.sleep(0.001)
    assert 5 <= len(seen) <= 22
    assert max(seen) < (began_s + 0.25) * 1e9


def test_faulty_policy_passes_check_policy(make):
    robot = make().spec
    components = {"actor": {"gain": np.array([0.3], np.float32)}}
    check_policy(
        lambda: FaultyPolicy(FaultyPolicyConfig(), robot=robot),
        snapshot=WeightSnapshot(version=4, components=components, hashes={}),
    )
    policy = FaultyPolicy(FaultyPolicyConfig(nan_after=1, raise_after=2), robot=robot)
    inputs = {key: np.zeros((1, *spec.shape), spec.dtype) for key, spec in robot.observation.items()}
    assert np.isfinite(policy.act(inputs, ActContext()).actions).all()
    assert np.isnan(policy.act(inputs, ActContext()).actions).any()
    with pytest.raises(RuntimeError, match="failed on purpose after 2 chunks"):
        policy.act(inputs, ActContext())
