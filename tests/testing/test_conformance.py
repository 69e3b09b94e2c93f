"""The suites accept correct plugins and reject broken ones."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.actor.actors import ActorConfig, NaiveActor, SequentialActor, SoftActor
from dovetail.config.plugins import BUILTIN, config_model, resolve
from dovetail.core.clock import NS_PER_S
from dovetail.core.contracts import Robot
from dovetail.core.errors import SpecMismatch
from dovetail.core.specs import ActionPart, ArraySpec, RobotSpec
from dovetail.core.types import (
    ActContext,
    ActionChunk,
    Array,
    Episode,
    EpisodeOrder,
    HumanInput,
    Observation,
    Outcome,
    Verdict,
    WeightSnapshot,
)
from dovetail.robots.gym import GymRobot, GymRobotConfig
from dovetail.testing import check_actor, check_algorithm, check_operator, check_policy, check_robot, check_task
from dovetail.testing.fake_learning import (
    FakeAlgorithm,
    FakeAlgorithmConfig,
    FakeOperator,
    FakeOperatorConfig,
    FakePolicy,
    FakePolicyConfig,
)
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeExpert,
    FakeTask,
    FakeTaskConfig,
)
from dovetail.testing.live import LiveArm, LiveArmConfig
from dovetail.testing.staged_task import StagedTask, StagedTaskConfig

ARM = FakeArmConfig(image_size=(8, 6))
HISTORY = FakePolicyConfig(horizon=50, history={"joint_pos": 50})


def arm(task: Any = None) -> FakeArm:
    return FakeArm(ARM, task=task)


def bimanual(task: Any = None) -> FakeBimanual:
    return FakeBimanual(FakeBimanualConfig(), task=task)


def reach() -> FakeTask:
    return FakeTask(FakeTaskConfig())


# ---- what is right passes


@pytest.mark.parametrize("make", [arm, bimanual, lambda: GymRobot(GymRobotConfig(id="Pendulum-v1"))])
def test_fake_robots_pass(make: Callable[[], Robot]) -> None:
    check_robot(make, num_ticks=5)


@pytest.mark.parametrize("config", [{"arm": "panda"}, {"arm": "x5"}, {"arm": "panda", "action": "joint"}])
def test_sim_robots_pass(config: dict[str, Any]) -> None:
    sim = resolve("robot", "sim")
    check_robot(lambda: sim(config_model(sim).model_validate(config)))


@pytest.mark.parametrize("make_robot", [arm, bimanual])
def test_fake_task_and_operator_pass(make_robot: Callable[[Any], Robot]) -> None:
    check_task(reach, make_robot)
    check_operator(lambda task: FakeOperator(FakeOperatorConfig(), task=task), reach, make_robot)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", sorted(BUILTIN["task"].keys() - {"table", "igris_reach"})
)  # they need no simulated world
def test_builtin_tasks_pass(name: str) -> None:
    task, sim = resolve("task", name), resolve("robot", "sim")
    check_task(
        lambda: task(config_model(task).model_validate({})),
        lambda made: sim(config_model(sim).model_validate({}), task=made),
        num_expert_episodes=2,
        min_expert_successes=1,
    )


@pytest.mark.parametrize("name", ["browser", "none", "scripted"])
def test_builtin_operators_pass(name: str) -> None:
    """Those that need no device; the others stand before fake ones in tests/human."""
    operator = resolve("operator", name)
    for make_robot in (arm, bimanual):
        check_operator(lambda task: operator(config_model(operator)(), task=task), reach, make_robot)


def test_fake_policies_pass() -> None:
    check_policy(lambda: FakePolicy(FakePolicyConfig(), robot=arm().spec))
    policy = FakePolicy(HISTORY, robot=bimanual().spec)
    snapshot = WeightSnapshot(version=3, components={"actor": {"weights": policy.weights}}, hashes={})
    check_policy(lambda: FakePolicy(HISTORY, robot=bimanual().spec), snapshot=snapshot)


def test_fake_algorithm_passes() -> None:
    check_algorithm(lambda: algorithm(FakeAlgorithm), robot=arm().spec)


@pytest.mark.parametrize("make_robot", [arm, bimanual])
def test_gaussian_policy_and_rlpd_pass(make_robot: Callable[[], Robot]) -> None:
    torch.set_num_threads(1)
    policy, rlpd = resolve("policy", "gaussian_mlp"), resolve("algorithm", "rlpd")
    spec = make_robot().spec
    history = {key: 50 for key in ("joint_pos", "ee_pose") if key in spec.observation}
    remembering = config_model(policy).model_validate({"history": history})
    check_policy(lambda: policy(config_model(policy)(), robot=spec, seed=0))
    check_policy(lambda: policy(remembering, robot=spec, seed=0))
    check_algorithm(
        lambda: rlpd(config_model(rlpd)(), policy=policy(config_model(policy)(), robot=spec)), robot=spec
    )


def test_suites_need_no_torch() -> None:
    code = (
        "import sys, dovetail.testing, dovetail.robots.safety;"
        "print([name for name in ('torch', 'ray', 'mujoco') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- robots that are wrong


class WrongDtype(FakeArm):
    def observe(self) -> Observation:
        seen = super().observe()
        return Observation(time_ns=seen.time_ns, values={k: v.astype(np.float64) for k, v in seen.values.items()})


class WrongKeys(FakeArm):
    def observe(self) -> Observation:
        seen = super().observe()
        return Observation(time_ns=seen.time_ns, values={**seen.values, "more": np.zeros(1, np.float32)})


class Frozen(FakeArm):
    def observe(self) -> Observation:
        return Observation(time_ns=0, values=super().observe().values)


class Reused(FakeArm):
    buffer = np.zeros(3, np.float32)

    def observe(self) -> Observation:
        seen = super().observe()
        self.buffer[:] = seen.values["ee_pose"][:3]
        return Observation(time_ns=seen.time_ns, values={**seen.values, "goal": self.buffer})


class Impatient(FakeArm):
    def send(self, action: Array) -> Array:
        executed = super().send(action)
        self.advance(NS_PER_S)
        return executed


class TooFast(FakeArm):
    def advance(self, duration_ns: int) -> None:
        super().advance(3 * duration_ns)


class Echo(FakeArm):
    def send(self, action: Array) -> Array:
        super().send(action)
        return action


class Overwrites(FakeArm):
    def send(self, action: Array) -> Array:
        executed = super().send(action)
        action[:] = 0
        return executed


class SaysMore(FakeArm):
    def send(self, action: Array) -> Array:
        return super().send(action) * 1000


class StopsOnce(FakeArm):
    stopped = False

    def stop(self) -> None:
        if self.stopped:
            raise RuntimeError("already stopped")
        self.stopped = True


class Dice(FakeArm):
    def advance(self, duration_ns: int) -> None:
        super().advance(duration_ns)
        self._motion.state += np.random.normal(size=3) * 1e-3


class Twitchy(FakeArm):
    def observe(self) -> Observation:
        self._motion.state += 1e-4
        return super().observe()


class Reversed(FakeArm):
    """Like a driver with one wrong sign: says that it moves forward, and moves back."""

    def send(self, action: Array) -> Array:
        super().send(action * np.array([1, -1, 1, 1, 1, 1, 1], np.float32))
        return action.copy()


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        (Reversed, "axis 'dy' moves against its command"),
        (WrongDtype, "float64"),
        (WrongKeys, "more"),
        (Frozen, "did not advance"),
        (Reused, "changed after it was returned"),
        (Impatient, "send.. let simulated time pass"),
        (TooFast, "changed observation.time_ns by"),
        (Echo, "caller's array"),
        (Overwrites, "changed the action"),
        (SaysMore, "outside the limits"),
        (StopsOnce, "already stopped"),
        (Dice, "same actions differ"),
        (Twitchy, "at one moment differ"),
    ],
)
def test_broken_robot_fails_with_the_reason(robot: type[FakeArm], message: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=message):
        check_robot(lambda: robot(FakeArmConfig()))


@pytest.mark.parametrize("start", [0.0, 0.4, -0.4])
def test_reversed_joint_targets_are_found(start: float) -> None:
    class ReversedJoints(FakeBimanual):
        def __init__(self) -> None:
            super().__init__(FakeBimanualConfig())
            self._motion.place(np.full(24, start), np.zeros(24))

        def send(self, action: Array) -> Array:
            super().send(-action)
            return action.copy()

    with pytest.raises(AssertionError, match="the driver reverses the axis, or uses another unit or zero"):
        check_robot(ReversedJoints)


class TwoJoints:
    """A real arm that is at its target at once."""

    def __init__(self, executed: Callable[[Array], Array], *, start: float = 0.0) -> None:
        joints = ("shoulder", "elbow")
        part = ActionPart(
            name="arm", kind="joint_target", unit="rad", names=joints, low=(-2.0, -2.0), high=(2.0, 2.0),
            max_speed=(2.0, 2.0), measured="joint_pos",
        )  # fmt: skip
        self.spec = RobotSpec(
            name="two_joints", embodiment="two_joints", observation={"joint_pos": ArraySpec(shape=(2,), names=joints)},
            parts=(part,), control_hz=50.0,
        )  # fmt: skip
        self._executed, self._joints = executed, np.full(2, start, np.float32)

    def observe(self) -> Observation:
        return Observation(time_ns=time.monotonic_ns(), values={"joint_pos": self._joints.copy()})

    def send(self, action: Array) -> Array:
        self._joints = self._executed(action.copy()).astype(np.float32)
        return action.copy()

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    "executed",
    [
        np.radians,  # the SDK takes degrees and gets rad
        np.zeros_like,  # the motors are off
        lambda action: action * np.array([0.01, 1.0]),  # one joint in percent
    ],
)
def test_joint_that_hardly_moves_is_found(executed: Callable[[Array], Array]) -> None:
    robot = TwoJoints(executed)
    with pytest.raises(
        AssertionError, match=r"axis 'shoulder' should move by 0\.05 rad and moved by [\de.-]+: it sends"
    ):
        check_robot(lambda: robot)


def test_joint_that_falls_short_of_its_target_passes() -> None:
    robot = TwoJoints(lambda action: 0.5 * action)
    check_robot(lambda: robot, num_ticks=5)


@pytest.mark.parametrize("start", [0.0, 1.5, -1.98])
def test_arm_moves_no_further_than_the_warning_says(start: float) -> None:
    poses: list[Array] = []

    def executed(action: Array) -> Array:
        poses.append(action)
        return action

    robot = TwoJoints(executed, start=start)
    check_robot(lambda: robot)
    furthest = np.abs(np.array(poses) - start).max()
    assert 0.04 < furthest <= 0.05 * (2.0 - -2.0)


@pytest.mark.parametrize("call", ["send", "observe"])
def test_call_that_takes_a_whole_tick_is_found(call: str) -> None:
    class Slow(LiveArm):
        def send(self, action: Array) -> Array:
            time.sleep(0.02 if call == "send" else 0.0)
            return super().send(action)

        def observe(self) -> Observation:
            time.sleep(0.02 if call == "observe" else 0.0)
            return super().observe()

    with pytest.raises(AssertionError, match=rf"{call}\(\) takes 2\d\.\d ms, and a tick has 20\.0 ms"):
        check_robot(lambda: Slow(LiveArmConfig()))


def test_check_of_hardware_says_that_it_moves_the_arm(caplog: pytest.LogCaptureFixture) -> None:
    check_robot(lambda: arm(), num_ticks=2)
    assert not caplog.messages  # simulated
    robot = LiveArm(LiveArmConfig())
    check_robot(lambda: robot, num_ticks=2)
    assert caplog.messages == [
        f"check_robot moves robot '{robot.spec.name}' now, by up to 5 % of its range. Keep clear, with a hand on its "
        "emergency stop."
    ]


def test_warning_reaches_the_terminal_also_where_pytest_captures_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setattr("dovetail.testing.robots._TERMINAL", os.ttyname(theirs))
    monkeypatch.setattr("sys.stderr", io.StringIO())  # as captured
    sent: list[bool] = []

    class Noted(LiveArm):
        def send(self, action: Any) -> Any:
            if not sent:
                sent.append(b"Keep clear" in os.read(ours, 1000))
            return super().send(action)

    robot = Noted(LiveArmConfig())
    check_robot(lambda: robot, num_ticks=2)
    assert sent == [True]  # before the first motion


def test_object_without_the_contract_is_no_robot() -> None:
    with pytest.raises(AssertionError, match="observe, send, stop"):
        check_robot(lambda: object())  # type: ignore[arg-type, return-value]


# ---- tasks that are wrong


class OwnDice(FakeTask):
    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        super().reset(robot, rng=np.random.default_rng())


class AlwaysThere(FakeTask):
    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        super().reset(robot, rng=np.random.default_rng(0))


class Endless(FakeTask):
    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        return super().judge(robot, observation, num_steps=0)


class Harsh(FakeTask):
    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        verdict = super().judge(robot, observation, num_steps=num_steps)
        outcome = Outcome.FAILURE if verdict.outcome is Outcome.TIMEOUT else verdict.outcome
        return Verdict(outcome=outcome, rewards=verdict.rewards)


class Fickle(FakeTask):
    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        return Verdict(outcome=None, rewards={f"step{num_steps}": 0.0})


class NotANumber(FakeTask):
    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict:
        return Verdict(outcome=None, rewards={"r": float("nan")})


class Elsewhere(FakeTask):
    @property
    def spec(self) -> Any:
        return type(super().spec)(name="elsewhere", observation_keys=("no_such_key",))


class Lazy(FakeTask):
    class Sleeper(FakeExpert):
        def act(self, observation: Observation) -> Array:
            return np.array([0, 0, 0, 0, 0, 0, 1], np.float32)

    def expert(self) -> FakeExpert:
        return self.Sleeper(self.robot)


class Rude(FakeTask):
    class Wild(FakeExpert):
        def act(self, observation: Observation) -> Array:
            return super().act(observation) + np.float32(5)

    def expert(self) -> FakeExpert:
        return self.Wild(self.robot)


class Boastful(FakeTask):
    class Liar(FakeExpert):
        def progress(self, observation: Observation) -> float:
            return 2.0

    def expert(self) -> FakeExpert:
        return self.Liar(self.robot)


class StaysInStage(StagedTask):
    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None:
        stage = self._stage
        super().reset(robot, rng=rng)
        self._stage = stage


def test_task_with_stages_passes_unless_reset_stays_in_a_stage() -> None:
    check_task(lambda: StagedTask(StagedTaskConfig()), arm, max_steps=100)
    with pytest.raises(AssertionError, match="does not go back to the first stage's prompt"):
        check_task(lambda: StaysInStage(StagedTaskConfig()), arm, max_steps=100)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (OwnDice, "same rng seed"),
        (AlwaysThere, "every rng seed"),
        (Endless, "time limit"),
        (Harsh, "failure"),
        (Fickle, "keep them the same"),
        (NotANumber, "finite"),
        (Elsewhere, "no_such_key"),
        (Lazy, "succeeded in 0"),
        (Rude, "outside the limits"),
        (Boastful, "progress"),
    ],
)
def test_broken_task_fails_with_the_reason(task: type[FakeTask], message: str) -> None:
    with pytest.raises((AssertionError, SpecMismatch), match=message):
        check_task(lambda: task(FakeTaskConfig()), arm, max_steps=100)


# ---- operators that are wrong


class Unseeded(FakeOperator):
    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None:
        super().reset(rng=np.random.default_rng(), robot_minutes=robot_minutes)


class Nameless(FakeOperator):
    name = ""


class Brute(FakeOperator):
    def poll(self, observation: Observation) -> HumanInput:
        return HumanInput(action=np.full(7, 9, np.float32))


class Meddler(FakeOperator):
    def poll(self, observation: Observation) -> HumanInput:
        observation.values["goal"][:] = 0
        return HumanInput()


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Unseeded, "same rng"),
        (Nameless, "name is empty"),
        (Brute, "outside the limits"),
        (Meddler, "changed the observation"),
    ],
)
def test_broken_operator_fails_with_the_reason(operator: type[FakeOperator], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_operator(lambda task: operator(FakeOperatorConfig(), task=task), reach, arm)


# ---- policies that are wrong


class FlatChunk(FakePolicy):
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        chunk = super().act(observations, context)
        return ActionChunk(actions=chunk.actions[:, 0], observed_ns=0, policy_version=0)


class FirstRowOnly(FakePolicy):
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        chunk = super().act(observations, context)
        same = np.broadcast_to(chunk.actions[:1], chunk.actions.shape).copy()
        return ActionChunk(actions=same, observed_ns=0, policy_version=0)


class NeverCalm(FakePolicy):
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        return super().act(observations, ActContext(seed=context.seed))


class Seedless(FakePolicy):
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        return super().act(observations, ActContext(deterministic=context.deterministic))


class Unmasked(FakePolicy):
    def features(self, observations: Mapping[str, Array]) -> Array:
        masks = {k: np.ones_like(v) for k, v in observations.items() if k.endswith("/mask")}
        return super().features({**observations, **masks})


class Unlimited(FakePolicy):
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        chunk = super().act(observations, context)
        return ActionChunk(actions=chunk.actions * 100, observed_ns=0, policy_version=0)


class OneChunk(FakePolicy):
    buffer: Array | None = None

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        chunk = super().act(observations, context)
        if self.buffer is None or self.buffer.shape != chunk.actions.shape:
            self.buffer = chunk.actions
        self.buffer[...] = chunk.actions
        return ActionChunk(actions=self.buffer, observed_ns=0, policy_version=0)


class Forgetful(FakePolicy):
    def load(self, snapshot: WeightSnapshot) -> None:
        self.weights = snapshot.components["actor"]["weights"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (FlatChunk, r"\[B, H, A\]"),
        (FirstRowOnly, "rows must be independent"),
        (NeverCalm, "alone|deterministic"),
        (Seedless, "same seed"),
        (Unmasked, "mask excludes"),
        (Unlimited, "outside the limits"),
        (OneChunk, "copy it"),
        (Forgetful, "after load"),
    ],
)
def test_broken_policy_fails_with_the_reason(policy: type[FakePolicy], message: str) -> None:
    config = FakePolicyConfig(history={"ee_pose": 4, "front": 2})
    good = FakePolicy(config, robot=arm().spec)
    snapshot = WeightSnapshot(version=3, components={"actor": {"weights": good.weights}}, hashes={})
    with pytest.raises(AssertionError, match=message):
        check_policy(lambda: policy(config, robot=arm().spec), snapshot=snapshot)


# ---- algorithms that are wrong


def algorithm(kind: type[FakeAlgorithm]) -> FakeAlgorithm:
    return kind(FakeAlgorithmConfig(), policy=FakePolicy(FakePolicyConfig(), robot=arm().spec))


class Idle(FakeAlgorithm):
    def update(self, batch: Mapping[str, Array]) -> Mapping[str, float]:
        return {}


class Scribbles(FakeAlgorithm):
    def update(self, batch: Mapping[str, Array]) -> Mapping[str, float]:
        metrics = super().update(batch)
        batch["reward"][:] = 9
        return metrics


class Diverges(FakeAlgorithm):
    def update(self, batch: Mapping[str, Array]) -> Mapping[str, float]:
        super().update(batch)
        return {"loss": float("inf")}


class NoMomentum(FakeAlgorithm):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "velocity": np.zeros_like(state["velocity"])})


class NoCounter(FakeAlgorithm):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "num_updates": 0})


class NoWeights(FakeAlgorithm):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class LiveWeights(FakeAlgorithm):
    def update(self, batch: Mapping[str, Array]) -> Mapping[str, float]:
        before = self._policy.weights
        metrics = super().update(batch)
        before[...] = self._policy.weights
        self._policy.weights = before
        return metrics

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return {"actor": {"weights": self._policy.weights}}


class Unrepeatable(FakeAlgorithm):
    def update(self, batch: Mapping[str, Array]) -> Mapping[str, float]:
        metrics = super().update(batch)
        self._policy.weights = self._policy.weights + np.random.normal(size=self._policy.weights.shape) * 1e-6
        return metrics


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Idle, "did not change the policy"),
        (Scribbles, "changed the batch"),
        (Diverges, "finite number"),
        (NoMomentum, "optimizers"),
        (NoCounter, "optimizers"),
        (NoWeights, "did not restore"),
        (LiveWeights, "policy_weights.. returned"),
        (Unrepeatable, "optimizers|two equal algorithms"),
    ],
)
def test_broken_algorithm_fails_with_the_reason(kind: type[FakeAlgorithm], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(lambda: algorithm(kind), robot=arm().spec)


# ---- actors


@pytest.mark.parametrize("actor", [SequentialActor, NaiveActor, SoftActor])
@pytest.mark.parametrize("config", [ActorConfig(), ActorConfig(execution_horizon=2, flush_every_s=0.3)])
def test_builtin_actors_pass(actor: type[SequentialActor], config: ActorConfig) -> None:
    check_actor(lambda **handles: actor(config, **handles))


class Anonymous(SequentialActor):
    def run(self, order: EpisodeOrder) -> Episode | None:
        return super().run(replace(order, seed=order.seed + 1))


class Ends(SequentialActor):
    def run(self, order: EpisodeOrder) -> Episode | None:
        episode = super().run(order)
        return None if episode is None else replace(episode, outcome=Outcome.SUCCESS)


class Forgets(SequentialActor):
    """The recorder gets other steps than the episode."""

    def __init__(self, config: ActorConfig, *, recorder: Any, **handles: Any) -> None:
        super().__init__(config, recorder=None, **handles)


class Tosses(SequentialActor):
    def run(self, order: EpisodeOrder) -> Episode | None:
        episode = super().run(replace(order, index=int(np.random.default_rng().integers(1 << 30))))
        assert episode is not None
        return episode


class Ignores(SequentialActor):
    """Never takes over."""

    def __init__(self, config: ActorConfig, *, operator: Any, **handles: Any) -> None:
        operator.poll = lambda observation: HumanInput()
        super().__init__(config, operator=operator, **handles)


class Stays(SequentialActor):
    def load(self, snapshot: WeightSnapshot) -> None:
        pass


class Goes(SequentialActor):
    def __init__(self, config: ActorConfig, *, should_stop: Any, **handles: Any) -> None:
        super().__init__(config, **handles)


class Forgives(SequentialActor):
    def run(self, order: EpisodeOrder) -> Episode | None:
        self._robot.acknowledge()
        return super().run(order)


class Incomplete:
    def __init__(self, config: ActorConfig, **handles: Any) -> None: ...

    def run(self, order: EpisodeOrder) -> None: ...


@pytest.mark.parametrize(
    ("actor", "message"),
    [
        (Anonymous, "the episode's seed is 1, but the order has 0"),
        (Ends, "timed out after 12 steps"),
        (Forgets, "the recorder should get one begin"),
        (Tosses, "the same order gave another episode"),
        (Stays, "after load.. of version 7"),
        (Ignores, "a person drove in steps"),
        (Goes, "`stopped` is false"),
        (Forgives, "must raise RobotFault"),
        (Incomplete, "does not implement all of Actor"),
    ],
)
def test_broken_actor_fails_with_the_reason(actor: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_actor(lambda **handles: actor(ActorConfig(), **handles))
