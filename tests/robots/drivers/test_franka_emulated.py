"""A simulated task over the emulator's HTTP server: reset, state, success and expert."""

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.clock import SimulatedClock
from dovetail.core.contracts import SimulatedRobot
from dovetail.core.errors import RobotError, RobotFault, UsageError
from dovetail.core.types import Outcome
from dovetail.emulators.franka.emulator import FrankaEmulator, FrankaEmulatorConfig
from dovetail.robots.drivers.franka.emulated import EmulatedFranka
from dovetail.robots.drivers.franka.settings import EmulatedFrankaConfig
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.runs.assembly.workcell import build_workcell
from dovetail.tasks.peg_insertion import InsertionConfig, PegInsertion


@pytest.fixture
def emulator():
    with FrankaEmulator(FrankaEmulatorConfig(port=0, task="peg_insertion", lockstep=True)) as running:
        yield running


def build(emulator, task=None, **settings):
    task = task or PegInsertion(InsertionConfig(time_limit_s=6.0))
    return task, EmulatedFranka(EmulatedFrankaConfig(address=emulator.address, **settings), task=task)


def test_expert_inserts_the_peg_over_http(emulator):
    config = load(["franka-peg-emulated"], [f"robot.address={emulator.address}"])
    cell = build_workcell(task=config.task, robot=config.robot, safety=config.safety)
    assert isinstance(cell.clock, SimulatedClock)
    expert = cell.task.expert()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        cell.task.reset(cell.robot, rng=rng)
        cell.robot.reset()
        expert.reset(rng, noise=0.3)
        observation, outcome, num_steps = cell.robot.observe(), None, 0
        while outcome is None:
            cell.robot.send(expert.act(observation))
            cell.clock.sleep_until(cell.clock.now_ns() + 100_000_000)
            observation, num_steps = cell.robot.observe(), num_steps + 1
            outcome = cell.task.judge(cell.robot, observation, num_steps=num_steps).outcome
        assert outcome is Outcome.SUCCESS
        depth = emulator.arm.world.body_pose("tool")[0][2]
        assert depth == pytest.approx(cell.task.face_m - 0.022, abs=0.004)
    calls = emulator.endpoints.num_calls
    assert calls["/pose"] > 30 and calls["/getstate"] > 30
    cell.close()


def test_reset_places_the_emulator_as_the_task_did_in_its_mirror(emulator):
    task, robot = build(emulator)
    task.reset(robot, rng=np.random.default_rng(5))
    for name in ("tool", "socket"):
        for ours, theirs in zip(robot.world.body_pose(name), emulator.arm.world.body_pose(name), strict=True):
            assert np.allclose(ours, theirs, atol=1e-9)
    first = robot.observe()
    robot.advance(100_000_000)
    assert robot.observe().time_ns - first.time_ns == 100_000_000
    assert robot.probe()["sim_qpos"].shape == robot.world.data.qpos.shape


def test_state_and_actions_are_in_the_base_frame(emulator):
    """The vector from the tip to the socket is the difference of their positions, without a rotation."""
    task, robot = build(emulator)
    task.reset(robot, rng=np.random.default_rng(1))
    tip, socket = emulator.arm.world.body_pose("tool")[0], emulator.arm.world.body_pose("socket")[0]
    assert np.allclose(robot.observe().values["task_state"][:3], socket - tip, atol=1e-5)
    assert robot.spec.parts[0].frame == "base" and robot.spec.action.shape == (6,)


def test_real_time_robot_refuses_an_emulator_in_lockstep(emulator):
    _, robot = build(emulator, simulated_time=False)
    assert not isinstance(robot, SimulatedRobot)
    with pytest.raises(RobotError, match=r"the emulator has lockstep=true, but robot.simulated_time=false"):
        robot.observe()


def test_missing_emulator_is_an_error_that_names_the_command():
    task = PegInsertion(InsertionConfig())
    robot = EmulatedFranka(EmulatedFrankaConfig(address="127.0.0.1:9"), task=task)
    with pytest.raises(RobotError, match=r"Start `dovetail emulate franka task=peg_insertion lockstep=true`"):
        robot.observe()
    with pytest.raises(UsageError, match="needs a simulated task"):
        EmulatedFranka(EmulatedFrankaConfig())


def test_wrong_token_is_refused(emulator):
    _, robot = build(emulator, token="wrong")
    with pytest.raises(RobotError, match=r"answered 403 to /emulator/state. Its token is wrong"):
        robot.observe()


def test_emulator_with_another_scene_is_refused():
    with FrankaEmulator(FrankaEmulatorConfig(port=0, lockstep=True)) as emulator:
        task, robot = build(emulator)
        with pytest.raises(RobotError, match="the emulator has another scene"):
            robot.observe()
        with pytest.raises(RobotError, match="answered 400 to /emulator/reset"):
            task.reset(robot, rng=np.random.default_rng(0))


def test_emulator_that_dies_in_an_episode_is_a_fault(emulator):
    task, robot = build(emulator)
    clock = SimulatedClock()
    clock.on_advance(robot.advance)
    safe = SafeRobot(robot, SafetyConfig(), clock)
    task.reset(safe, rng=np.random.default_rng(0))
    safe.reset()
    safe.observe()
    emulator.close()
    with pytest.raises(RobotFault, match="refused the connection"):
        safe.observe()
    assert "Use its emergency stop" in safe.fault
