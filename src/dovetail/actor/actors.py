"""Actors in one process: control loop, inference and recording.

`dovetail.robot_host` runs the same loop with inference and recording in other processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.actor.board import Board, BoardLayout
from dovetail.actor.control import ControlLoop
from dovetail.actor.episode_end import HealthCheck
from dovetail.actor.episode_prompt import prepare_prompt
from dovetail.actor.episode_writer import EpisodeWriter
from dovetail.actor.homing import Home
from dovetail.actor.inference import Inference, InlineInference, ThreadInference
from dovetail.actor.modes import Mode, Naive, Rtc, Sequential, Soft
from dovetail.actor.planner import Delays, Planner
from dovetail.actor.telemetry import Telemetry
from dovetail.config.model import Config
from dovetail.core.clock import SimulatedClock, boot_id
from dovetail.core.contracts import Clock, GuardedRobot, Operator, Policy, Recorder, Task
from dovetail.core.errors import ConfigError, RobotFault
from dovetail.core.policy_rate import Resampling, covering_ticks, ticks_per_step
from dovetail.core.specs import PolicySpec, RobotSpec
from dovetail.core.types import (
    Array,
    Episode,
    EpisodeOrder,
    EpisodeStart,
    Outcome,
    TicksPerStep,
    WeightSnapshot,
)

__all__ = [
    "ActorConfig",
    "NaiveActor",
    "RtcActor",
    "SequentialActor",
    "SoftActor",
    "board_layout",
    "make_loop",
    "make_start",
    "policy_ticks",
]


class ActorConfig(Config):
    """Timing of control, inference and recording."""

    BASIC: ClassVar[Collection[str]] = ("layout", "execution_horizon")
    RENAMED: ClassVar[Mapping[str, str]] = {
        "settle_s": "replan_after_takeover_s",
        "stall_s": "inference_timeout_s",
        "flush_s": "flush_every_s",
        "ring_s": "recorder_buffer_s",
        "heartbeat_s": "heartbeat_timeout_s",
        "hang_s": "tick_timeout_s",
        "swap": "swap_weights",
    }
    REMOVED: ClassVar[Mapping[str, str]] = {"delay_window": "the expected delay is the longest of the last 10"}

    execution_horizon: int | None = Field(default=None, ge=1)
    """Steps of a chunk that are executed. Null: the whole chunk if the arm waits for the next one, or else half of it."""
    policy_hz: float | None = Field(default=None, gt=0.0)
    """Steps of a chunk per second, at most the robot's control_hz. Null: one step per tick."""
    resample: Resampling = "chunk"
    """How steps at `policy_hz` become ticks. linear: targets are interpolated; hold: they are held; both divide deltas.
    chunk: one step per tick, without `policy_hz`."""
    layout: Literal["one_process", "processes"] = "one_process"
    """Control, inference and recording in one process, or each in its own, with a guard. A real arm needs `processes`."""
    simulated_delay_ticks: int = Field(default=0, ge=0)
    """Ticks that inference takes in simulated time."""
    replan_after_takeover_s: float = Field(default=1.0, ge=0.0)
    """Seconds after a takeover in which the policy plans again at every tick."""
    inference_timeout_s: float = Field(default=2.0, gt=0.0)
    """Seconds of inference after which a fault is raised. Before that, the arm holds when its chunk is used up. With
    a policy server it is at least the longest request: a time-out there means hold."""
    max_bad_chunks: int = Field(default=5, ge=1)
    """Consecutive chunks with NaN or a wrong shape before a fault is raised. Earlier ones are ignored."""
    home: Home | None = None
    """Pose to which a joint-controlled arm moves before each episode. Null: the task resets the arm."""
    wait_for_start: bool = False
    """Hold after each reset until the operator signals start."""
    flush_every_s: float = Field(default=2.0, gt=0.0)
    """Seconds between two flushes of a running episode to disk. A crash loses at most this much."""
    recorder_buffer_s: float = Field(default=6.0, gt=0.0)
    """Seconds by which the recorder may fall behind the robot."""
    heartbeat_timeout_s: float = Field(default=1.0, gt=0.0)
    """Seconds without a heartbeat of supervisor, guard or control loop until the arm stops. It holds after half of it."""
    tick_timeout_s: float = Field(default=30.0, gt=0.0)
    """Seconds without a tick until the control process is killed with a fault. Resets count too."""
    probe_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the online episodes with noise in which the base of a policy `residual` or `rl_token` acts alone at first.
    Data then cover states that the base reaches (PLD)."""
    probe_steps: int = Field(default=50, ge=1)
    """Largest number of steps in which the base acts alone. Each of these episodes draws a number from 1 to this."""
    swap_weights: Literal["episode", "chunk"] = "episode"
    """Load new weights between episodes or between chunks."""


def board_layout(
    config: ActorConfig,
    *,
    robot: RobotSpec,
    policy: PolicySpec | None,
    extras: Mapping[str, Array],
    max_fps: Mapping[str, float] = MappingProxyType({}),
) -> BoardLayout:
    """A board with enough rows for a slow recorder and for the longest history.

    `max_fps`: the rate of cameras that never give more frames. Others may give one per tick.
    """
    ticks = policy_ticks(config, control_hz=robot.control_hz)
    longest = covering_ticks(max((policy.history.values() if policy else ()), default=1), ticks)
    buffer_s, spare = max(config.recorder_buffer_s, 2 * config.flush_every_s), longest + 8
    return BoardLayout.of(
        robot,
        extras=extras,
        horizon=policy.horizon if policy else 1,
        num_rows=round(buffer_s * robot.control_hz) + spare,
        ticks_per_step=ticks,
        num_frames={key: math.ceil(buffer_s * fps) + spare for key, fps in max_fps.items()},
        base_horizon=policy.base.horizon if policy and policy.base else 0,
        base_embedding=policy.base.embedding_size if policy and policy.base else 0,
    )


def policy_ticks(config: ActorConfig, *, control_hz: float) -> TicksPerStep:
    """Control ticks of one step of the policy. Raises ConfigError for rates that do not fit."""
    ticks = ticks_per_step(control_hz=control_hz, policy_hz=config.policy_hz)
    if ticks > 1 and config.resample == "chunk":
        raise ConfigError(
            f"actor.policy_hz is {config.policy_hz:g}, but the robot's rate is {control_hz:g} Hz. Set actor.resample to "
            "linear or hold"
        )
    return ticks


def make_loop(
    config: ActorConfig,
    mode: Mode,
    *,
    robot: GuardedRobot,
    task: Task,
    operator: Operator,
    policy: PolicySpec | None,
    inference: Inference | None,
    board: Board,
    clock: Clock,
    telemetry: Telemetry,
    probe: Callable[[], Mapping[str, Array]],
    should_stop: Callable[[], bool],
    health_check: HealthCheck | None = None,
    delays: Delays | None = None,
) -> ControlLoop:
    """Build the control loop for any kind of inference."""
    planner = None
    if config.probe_share and policy is not None and policy.base is None:
        raise ConfigError(
            f"actor.probe_share needs a policy with a base, such as residual; policy '{policy.name}' has none. Set it to 0"
        )
    if policy is not None and inference is not None:
        default = max(1, policy.horizon // 2) if mode.overlaps else policy.horizon
        planner = Planner(
            mode=mode,
            inference=inference,
            spec=policy,
            clock=clock,
            telemetry=telemetry,
            execution_horizon=config.execution_horizon or default,
            ticks_per_step=policy_ticks(config, control_hz=robot.spec.control_hz),
            resample=config.resample,
            simulated_delay=config.simulated_delay_ticks if isinstance(clock, SimulatedClock) else None,
            delays=delays or Delays(),
            inference_timeout_s=config.inference_timeout_s,
            max_bad_chunks=config.max_bad_chunks,
            propose=board.propose,
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
        health_check=health_check,
        replan_after_takeover_s=config.replan_after_takeover_s,
        wait_for_start=config.wait_for_start,
        probe_share=config.probe_share,
        probe_steps=config.probe_steps,
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
        deterministic=order.deterministic,
    )


class SequentialActor:
    """See the Actor contract. Computes a new chunk when the last one is used up. The arm holds meanwhile.

    For `probe`, `should_stop` and `health_check` see `ControlLoop`. Pass a `board` to share it with other readers.
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
        health_check: HealthCheck | None = None,
    ) -> None:
        self._robot, self._task, self._operator, self._policy = robot, task, operator, policy
        self._telemetry = Telemetry()
        self._stopped = False
        self._fault: str | None = None
        probe = probe or dict
        spec = policy.spec if policy else None
        extras = {**probe(), **robot.safety_extras()}
        self._board = board or Board(board_layout(config, robot=robot.spec, policy=spec, extras=extras))
        self._writer = EpisodeWriter(self._board, recorder, keep=True)
        self._flush_steps = max(1, round(config.flush_every_s * robot.spec.control_hz))
        self._inference: InlineInference | ThreadInference | None = None
        if policy is not None:
            kind = InlineInference if isinstance(clock, SimulatedClock) else ThreadInference
            self._inference = kind(self._board, policy)
        self._loop = make_loop(
            config,
            self.mode,
            robot=robot,
            task=task,
            operator=operator,
            policy=spec,
            inference=self._inference,
            board=self._board,
            clock=clock,
            telemetry=self._telemetry,
            probe=probe,
            should_stop=should_stop,
            health_check=health_check,
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
        if self._inference:
            self._inference.reset()
        prepare_prompt(self._task, order)
        start = make_start(order, task=self._task, robot=self._robot.spec, operator=self._operator.name)
        try:
            ended = self._loop.run(
                order, on_begin=lambda first: self._writer.begin(start, first=first), on_step=self._flush_if_due
            )
        except RobotFault:  # before its first step
            self._writer.end(outcome=Outcome.ABORTED, judgement=None, num_steps=0)
            raise
        self._stopped, self._fault = ended.stopped, ended.fault
        return self._writer.end(
            outcome=ended.outcome,
            judgement=ended.judgement,
            num_steps=ended.num_steps,
            reset_s=ended.reset_s,
            has_success=ended.has_success,
        )

    def load(self, snapshot: WeightSnapshot) -> None:
        assert self._policy is not None, "this actor has no policy"
        self._policy.load(snapshot)

    def telemetry(self) -> Mapping[str, float]:
        return self._telemetry.summary()

    def close(self) -> None:
        if isinstance(self._inference, ThreadInference):
            self._inference.close()

    def _flush_if_due(self) -> None:
        if self._writer.num_unwritten_steps > self._flush_steps:
            self._writer.flush()


class NaiveActor(SequentialActor):
    """Computes the next chunk while acting, and switches when it is ready. A baseline: the action may jump."""

    mode: ClassVar[Mode] = Naive()


class RtcActor(SequentialActor):
    """Real-time chunking: computes the next chunk while acting, guided by the committed actions."""

    mode: ClassVar[Mode] = Rtc()


class SoftActor(SequentialActor):
    """Computes the next chunk while acting, and blends it with the last one. For policies without guidance."""

    mode: ClassVar[Mode] = Soft()
