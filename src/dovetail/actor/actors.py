"""Actors in one process: the control loop, whoever thinks, and whoever writes it down, all here.

The processes of a robot's machine are the same loop, with the thinking and the writing elsewhere: see runtime's host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.control import ControlLoop, Watch
from dovetail.actor.homing import Home
from dovetail.actor.mind import LocalMind, Mind, ThreadMind
from dovetail.actor.modes import Mode, Naive, Rtc, Sequential, Soft
from dovetail.actor.planner import Delays, Planner
from dovetail.actor.scribe import Scribe
from dovetail.actor.telemetry import Telemetry
from dovetail.config.model import Config
from dovetail.core.clock import SimulatedClock, boot_id
from dovetail.core.contracts import Clock, GuardedRobot, Operator, Policy, Recorder, Task
from dovetail.core.errors import RobotFault
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import Array, Episode, EpisodeOrder, EpisodeStart, Outcome, WeightSnapshot

__all__ = [
    "ActorConfig",
    "NaiveActor",
    "RtcActor",
    "SequentialActor",
    "SoftActor",
    "board_layout",
    "make_loop",
    "make_start",
]


class ActorConfig(Config):
    execution_horizon: int | None = Field(default=None, ge=1)
    """Ticks that a chunk is executed for before thinking again; none: all of it where the arm waits for the answer,
    half of it where it does not."""
    layout: Literal["one_process", "processes"] = "one_process"
    """Where control, inference and recording run: together, or each in a process of its own, as a real arm wants."""
    simulated_delay_ticks: int = Field(default=0, ge=0)
    """How long an answer takes in simulated time, where thinking takes no time of its own."""
    delay_window: int = Field(default=10, ge=1)
    """The delay that is reckoned with is the longest of so many."""
    settle_s: float = Field(default=1.0, ge=0.0)
    """For so long after a person's correction the policy thinks again at every tick, as often as it can."""
    stall_s: float = Field(default=2.0, gt=0.0)
    """An answer that takes longer is a fault. Before, the arm holds once its plan is used up."""
    max_bad_chunks: int = Field(default=5, ge=1)
    """Chunks in a row with NaN or of a wrong shape that are passed over before it is a fault."""
    home: Home | None = None
    """Where a joint-controlled arm goes before each episode, arrival verified; none: the task sees to it."""
    wait_for_start: bool = False
    """Hold after each reset until the operator says start."""
    flush_s: float = Field(default=2.0, gt=0.0)
    """Robot time between two flushes of an episode to the spool: what a crash can cost."""
    ring_s: float = Field(default=6.0, gt=0.0)
    """Robot time that memory holds for the recorder, which may fall behind by this much."""
    heartbeat_s: float = Field(default=1.0, gt=0.0)
    """A supervisor that has not been heard of for half as long makes the arm hold, for as long makes it stop."""
    hang_s: float = Field(default=30.0, gt=0.0)
    """A control process that has not ticked for so long within an episode, resets included, is killed: a fault."""
    swap: Literal["episode", "chunk"] = "episode"
    """When new weights may come into use."""


def board_layout(
    config: ActorConfig, *, robot: RobotSpec, policy: PolicySpec | None, extras: Mapping[str, Array]
) -> BoardLayout:
    """With room for what the recorder may be behind, and for the longest history."""
    longest = max((policy.history.values() if policy else ()), default=1)
    num_rows = round(max(config.ring_s, 2 * config.flush_s) * robot.control_hz) + longest + 8
    return BoardLayout.of(robot, extras=extras, horizon=policy.horizon if policy else 1, num_rows=num_rows)


def make_loop(
    config: ActorConfig,
    mode: Mode,
    *,
    robot: GuardedRobot,
    task: Task,
    operator: Operator,
    policy: PolicySpec | None,
    mind: Mind | None,
    board: Board,
    clock: Clock,
    telemetry: Telemetry,
    probe: Callable[[], Mapping[str, Array]],
    should_stop: Callable[[], bool],
    watch: Watch | None = None,
    delays: Delays | None = None,
) -> ControlLoop:
    """The one control loop, whoever thinks."""
    planner = None
    if policy is not None and mind is not None:
        default = max(1, policy.horizon // 2) if mode.overlaps else policy.horizon
        planner = Planner(
            mode=mode,
            mind=mind,
            spec=policy,
            clock=clock,
            telemetry=telemetry,
            execution_horizon=config.execution_horizon or default,
            simulated_delay=config.simulated_delay_ticks if isinstance(clock, SimulatedClock) else None,
            delays=delays or Delays(config.delay_window),
            stall_s=config.stall_s,
            max_bad_chunks=config.max_bad_chunks,
        )
    return ControlLoop(
        robot=robot,
        task=task,
        operator=operator,
        planner=planner,
        board=board,
        clock=clock,
        telemetry=telemetry,
        probe=probe,
        should_stop=should_stop,
        watch=watch,
        settle_s=config.settle_s,
        wait_for_start=config.wait_for_start,
        home=config.home,
    )


def make_start(order: EpisodeOrder, *, task: Task, robot: RobotSpec, operator: str) -> EpisodeStart:
    return EpisodeStart(
        id=order.id,
        task=task.spec.name,
        prompt=task.prompt,
        robot=robot,
        operator=operator,
        purpose=order.purpose,
        seed=order.seed,
        config_hash=order.config_hash,
        started_unix_ns=order.started_unix_ns,
        boot_id=boot_id(),
    )


class SequentialActor:
    """See the Actor contract. It thinks when its chunk is used up, and the arm holds meanwhile.

    `recorder` takes an episode down while it happens; for `probe`, `should_stop` and `watch` see `ControlLoop`. A `board`
    that others may look at is given; otherwise there is one of its own.
    """

    Config: ClassVar[type[ActorConfig]] = ActorConfig
    mode: ClassVar[Mode] = Sequential()

    def __init__(
        self,
        config: ActorConfig,
        *,
        robot: GuardedRobot,
        task: Task,
        operator: Operator,
        policy: Policy | None,
        clock: Clock,
        recorder: Recorder | None = None,
        probe: Callable[[], Mapping[str, Array]] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        board: Board | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._robot, self._task, self._operator, self._policy = robot, task, operator, policy
        self._telemetry = Telemetry()
        self._stopped = False
        self._fault: str | None = None
        probe = probe or dict
        spec = policy.spec if policy else None
        extras = {**probe(), **robot.safety_extras()}
        self._board = board or Board(board_layout(config, robot=robot.spec, policy=spec, extras=extras))
        self._scribe = Scribe(self._board, recorder, keep=True)
        self._flush_steps = max(1, round(config.flush_s * robot.spec.control_hz))
        self._mind: LocalMind | ThreadMind | None = None
        if policy is not None:
            kind = LocalMind if isinstance(clock, SimulatedClock) else ThreadMind
            self._mind = kind(self._board, policy)
        self._loop = make_loop(
            config,
            self.mode,
            robot=robot,
            task=task,
            operator=operator,
            policy=spec,
            mind=self._mind,
            board=self._board,
            clock=clock,
            telemetry=self._telemetry,
            probe=probe,
            should_stop=should_stop,
            watch=watch,
        )

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def fault(self) -> str | None:
        return self._fault

    def acknowledge(self) -> None:
        self._fault = None
        self._robot.acknowledge()

    def run(self, order: EpisodeOrder) -> Episode | None:
        self._stopped, self._fault = False, None
        if self._policy:
            self._policy.reset()
        start = make_start(order, task=self._task, robot=self._robot.spec, operator=self._operator.name)
        try:
            ended = self._loop.run(
                order, on_begin=lambda first: self._scribe.begin(start, first=first), on_step=self._flush_if_due
            )
        except RobotFault:  # before its first step
            self._scribe.end(outcome=Outcome.ABORTED, judgement=None, num_steps=0)
            raise
        self._stopped, self._fault = ended.stopped, ended.fault
        return self._scribe.end(outcome=ended.outcome, judgement=ended.judgement, num_steps=ended.num_steps)

    def load(self, snapshot: WeightSnapshot) -> None:
        assert self._policy is not None, "nobody acts here but the operator"
        self._policy.load(snapshot)

    def telemetry(self) -> Mapping[str, float]:
        return self._telemetry.summary()

    def close(self) -> None:
        if isinstance(self._mind, ThreadMind):
            self._mind.close()

    def _flush_if_due(self) -> None:
        if self._scribe.num_waiting > self._flush_steps:
            self._scribe.flush()


class NaiveActor(SequentialActor):
    """Thinks while it acts, and switches to the new chunk when it comes: the baseline, which may jump."""

    mode: ClassVar[Mode] = Naive()


class RtcActor(SequentialActor):
    """Thinks while it acts; the policy is guided by what is committed, so that chunks join (real-time chunking)."""

    mode: ClassVar[Mode] = Rtc()


class SoftActor(SequentialActor):
    """Thinks while it acts, and blends finished chunks: for policies that cannot be guided."""

    mode: ClassVar[Mode] = Soft()
