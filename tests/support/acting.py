"""Helpers for tests of the actor: scripted clock, inference and operator, and a workcell of fakes."""

import numpy as np

from dovetail.actor.actors import ActorConfig, SequentialActor, board_layout, make_loop
from dovetail.actor.board import Board
from dovetail.actor.inference import Answer, InlineInference
from dovetail.actor.modes import Sequential
from dovetail.actor.planner import Planner
from dovetail.actor.telemetry import Telemetry
from dovetail.core.clock import NS_PER_S, SimulatedClock
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import ActionChunk, EpisodeOrder, HumanInput, Purpose
from dovetail.human.none import NoOperator
from dovetail.robots.safety import SafeRobot, SafetyConfig
from dovetail.testing.fakes import (
    FakeArm,
    FakeArmConfig,
    FakeBimanual,
    FakeBimanualConfig,
    FakeTask,
    FakeTaskConfig,
)

H, A = 8, 2
SPEC = PolicySpec(
    name="scripted",
    observation={},
    action=ArraySpec(shape=(A,), low=(-1.0,) * A, high=(1.0,) * A),
    action_kind="any",
    horizon=H,
    guidable=True,
)


def chunk(number, *, horizon=H):
    """[H, A] with chunk number and index in each action: 300, 301, ..."""
    return np.repeat((100.0 * number + np.arange(horizon, dtype=np.float32))[:, None], A, axis=1).astype(
        np.float32
    )


class FakeClock:
    """Looks like a real clock, but advances only in sleep_until."""

    def __init__(self):
        self.time_ns = 1_000 * NS_PER_S

    def now_ns(self):
        return self.time_ns

    def sleep_until(self, deadline_ns):
        self.time_ns = max(self.time_ns, deadline_ns)

    def pass_s(self, seconds):
        self.time_ns += round(seconds * NS_PER_S)


class ScriptedInference:
    """Answers after `set_answer`, or at once with `reply`."""

    def __init__(self, reply=None):
        self.requests, self._reply, self._actions, self._version = [], reply, None, None

    def ask(self, request):
        self.requests.append(request)
        self._actions = None if self._reply is None else self._reply(len(self.requests))

    def set_answer(self, actions, *, version=None):
        self._actions, self._version = actions, version

    def answer(self, *, wait):
        if self._actions is None:
            assert not wait, "it would wait forever"
            return None
        actions, self._actions = self._actions, None
        version = len(self.requests) if self._version is None else self._version
        return Answer(id=0, actions=actions, policy_version=version, latency_ns=1_000_000)


def make_planner(mode, inference, *, spec=SPEC, execution_horizon=4, simulated_delay=None, clock=None, **settings):
    planner = Planner(
        mode=mode,
        inference=inference,
        spec=spec,
        clock=clock or FakeClock(),
        telemetry=settings.pop("telemetry", Telemetry()),
        execution_horizon=execution_horizon,
        simulated_delay=simulated_delay,
        **settings,
    )
    planner.reset(first=0, rng=np.random.default_rng(0), deterministic=False)
    return planner


class ChunkPolicy:
    """Chunks of `horizon` tiny actions that encode their call and index."""

    def __init__(self, robot, horizon=4, history=None, value=None, guidable=False, prompted=False):
        keys = [k for k, s in robot.observation.items() if not s.is_image]
        self.spec = PolicySpec(
            name="chunks",
            observation={k: robot.observation[k] for k in keys},
            action=robot.action,
            action_kind=robot.action_kind,
            horizon=horizon,
            history=history or {},
            guidable=guidable,
            prompted=prompted,
        )
        self.calls, self.seeds, self.observations, self.value, self.contexts = 0, [], [], value, []

    def act(self, observations, context):
        self.observations.append({k: v.copy() for k, v in observations.items()})
        self.seeds.append((context.seed, context.deterministic))
        self.contexts.append(context)
        actions = np.zeros((1, self.spec.horizon, *self.spec.action.shape), np.float32)
        actions[0, :, 0] = 1e-4 * (10 * self.calls + np.arange(self.spec.horizon))
        if self.value is not None:
            actions[:] = self.value
        self.calls += 1
        return ActionChunk(actions=actions, observed_ns=0, policy_version=7)

    def reset(self):
        pass


class Person:
    """Gives scripted input at each poll after the reset."""

    name = "person"

    def __init__(self, inputs):
        self._inputs, self.num_polls = inputs, 0

    def reset(self, *, rng, robot_minutes):
        self.num_polls = 0

    def poll(self, observation):
        found = self._inputs.get(self.num_polls, HumanInput())
        self.num_polls += 1
        return found


class FakeWorkcell:
    """A fake robot behind the safety filter, with task and clock."""

    def __init__(self, *, bimanual=False, max_steps=12, raw=None, safety=None, task=None, **config):
        self.task = task or FakeTask(FakeTaskConfig(max_steps=max_steps, tolerance=0.0))
        self.clock = SimulatedClock()
        if raw is not None:
            self.raw = raw(task=self.task, clock=self.clock)
        elif bimanual:
            self.raw = FakeBimanual(FakeBimanualConfig(image_size=(8, 6), **config), task=self.task)
        else:
            self.raw = FakeArm(FakeArmConfig(**config), task=self.task)
        self.clock.on_advance(self.raw.advance)
        self.robot = SafeRobot(self.raw, safety or SafetyConfig(), self.clock)
        self.sent, self.sent_ns, self.num_stops = [], [], 0
        self._listen()

    def _listen(self):
        send, stop = self.raw.send, self.raw.stop

        def note(action):
            self.sent.append(action.copy())
            self.sent_ns.append(self.clock.now_ns())
            return send(action)

        def count():
            self.num_stops += 1
            stop()

        self.raw.send, self.raw.stop = note, count

    def actor(self, policy, *, kind=SequentialActor, operator=None, **config):
        return kind(
            ActorConfig(**config),
            robot=self.robot,
            task=self.task,
            operator=operator or NoOperator(),
            policy=policy,
            clock=self.clock,
        )

    def loop(self, policy, *, mode=None, operator=None, health_check=None, should_stop=lambda: False, **config):
        """The control loop, its board and its telemetry."""
        settings, telemetry = ActorConfig(**config), Telemetry()
        layout = board_layout(
            settings, robot=self.robot.spec, policy=policy.spec, extras=self.robot.safety_extras()
        )
        board = Board(layout)
        loop = make_loop(
            settings,
            mode or Sequential(),
            robot=self.robot,
            task=self.task,
            operator=operator or NoOperator(),
            policy=policy.spec,
            inference=InlineInference(board, policy),
            board=board,
            clock=self.clock,
            telemetry=telemetry,
            probe=dict,
            should_stop=should_stop,
            health_check=health_check,
        )
        return loop, board, telemetry


def order(**progress_rewards):
    return EpisodeOrder(
        **{"id": "e", "purpose": Purpose.ONLINE, "seed": 0, "index": 0, "config_hash": "h", **progress_rewards}
    )
