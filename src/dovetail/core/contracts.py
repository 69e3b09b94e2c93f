"""The contracts between folders: small Protocols, with numpy arrays at every boundary. Optional abilities are in
`dovetail.core.abilities`.

A shortened version of the loop that uses them:

    task.reset(robot, rng=rng)
    observation = robot.observe()
    while outcome is None:
        human = operator.poll(observation)
        action = human.action if human.action is not None else chunk.actions[i]
        executed = robot.send(action)
        clock.sleep_until(next_tick)
        observation = robot.observe()
        outcome = task.judge(robot, observation, num_steps=n).outcome
    recorder.end(outcome=outcome, judgement=None)
    replay.add(episode, labeler.label(episode))
    replay.sample(batch, view=view, rng=rng)
    metrics = algorithm.update(batch)
    weights.publish(algorithm.policy_weights())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec, TaskSpec
from dovetail.core.types import (
    ActContext,
    ActionChunk,
    Array,
    Episode,
    EpisodeOrder,
    EpisodeStart,
    HumanInput,
    Labels,
    Observation,
    Outcome,
    SampleRequest,
    Segment,
    Verdict,
    View,
    WeightSnapshot,
    Window,
)

__all__ = [
    "Actor",
    "Algorithm",
    "Camera",
    "Clock",
    "Expert",
    "GuardedRobot",
    "Labeler",
    "Operator",
    "Policy",
    "Recorder",
    "Replay",
    "ReplayReader",
    "ReplayWriter",
    "Robot",
    "SimulatedRobot",
    "Task",
    "WeightStore",
]


@runtime_checkable
class Clock(Protocol):
    """Monotonic time that the control loop reads and waits for."""

    def now_ns(self) -> int: ...

    def sleep_until(self, deadline_ns: int) -> None: ...


@runtime_checkable
class Robot(Protocol):
    """Hardware. Callers always receive it wrapped in the safety filter.

    The constructor does no I/O: several processes build the object, and only the control process uses all of it.
    """

    @property
    def spec(self) -> RobotSpec: ...

    def observe(self) -> Observation: ...

    def send(self, action: Array) -> Array:
        """Command one tick and return the executed action. Must not block: the clock waits for the next tick."""

    def stop(self) -> None:
        """Stop the motion. Any thread or process may call it at any time, more than once, while another call hangs, and
        without an earlier call: it then connects by itself."""


@runtime_checkable
class GuardedRobot(Robot, Protocol):
    """A robot behind the safety filter."""

    @property
    def fault(self) -> str | None:
        """Why the robot does not move until the fault is acknowledged. None without a fault."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the last observation, such as a NaN. None if it is valid."""

    def safety_extras(self) -> Mapping[str, Array]:
        """Columns to record about the last action: clipped axes, held, reasons."""

    def prepare_reset(self, *, tick: Callable[[], None]) -> None:
        """Before the task's reset: let a driver that is `PreparesReset` move. Raises RobotFault while a fault is latched.

        `tick` waits for the next tick and may raise to end the motion.
        """

    def reset(self) -> None:
        """Start a new episode at the current pose."""

    def largest_steps(self) -> Array:
        """Largest motion of each axis per tick, float64 [A]; infinite where nothing limits it."""

    def hold(self) -> Array:
        """Stand still for one tick and return the action that was sent."""

    def holding_action(self) -> Array:
        """The action with which the robot would stand still, float32 [A]. It is not sent."""

    def ease(self) -> Array:
        """Send an action halfway between the last command and standing still. Repeated calls stop the arm gently."""

    def trip(self, why: str) -> None:
        """Stop and latch a fault that was found outside the filter."""

    def acknowledge(self) -> None:
        """Clear the latched fault after a person has confirmed it."""

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        """Pass `next_buffer` to a driver that is `UsesBuffers`; other drivers are not affected."""


@runtime_checkable
class Camera(Protocol):
    """A camera next to a robot. One camera may give several images, such as color and depth.

        camera = MyCamera(config, name="front")               # no I/O
        camera.start()                                        # opens the device and waits for the first frame
        shown_ns = 0
        while running:
            if camera.newest_ns() != shown_ns:                # the newest frame wins, older ones are lost
                shown_ns = camera.read({key: next_buffer(key) for key in camera.spec})
        camera.close()

    The camera receives frames on a thread of its own: `newest_ns` and `read` never wait for the device. Times are those of
    capture, by this machine's monotonic clock. A lost camera is a RobotError with its name: a closed connection, a picture
    of another size. A camera that only stops giving frames is no error here: its newest frame grows old, and the safety
    filter holds, then stops the robot.
    """

    @property
    def spec(self) -> Mapping[str, ArraySpec]:
        """Its images, from the config alone: `front` uint8 [H, W, 3] in RGB, and if it has depth `front_depth` uint16
        [H, W, 1], in millimeters unless a setting says otherwise; 0: no measurement. Keys start with the camera's name."""

    def start(self) -> None:
        """Open the device and wait for a frame, seconds at most. Also called again after a RobotError, to reopen it."""

    def newest_ns(self) -> int:
        """Capture time of the newest frame. Each frame has its own time. Raises RobotError if the camera is lost."""

    def read(self, into: Mapping[str, Array]) -> int:
        """Write the newest frame into arrays of `spec`, in one copy, and return its capture time."""

    def close(self) -> None:
        """Release the device. May be called more than once, and before `start`."""


@runtime_checkable
class Actor(Protocol):
    """Runs episodes: control ticks, inference and recording."""

    @property
    def stopped(self) -> bool:
        """Whether the last episode ended because the run is stopping."""

    @property
    def fault(self) -> str | None:
        """Why the last episode was aborted and the robot does not move. None without a fault."""

    def acknowledge(self) -> None:
        """Clear the fault after a person has confirmed it; the robot may move again."""

    def run(self, order: EpisodeOrder) -> Episode | None:
        """Run one episode from reset to verdict. None if it ended before its first step."""

    def load(self, snapshot: WeightSnapshot) -> None:
        """Use these weights from the next episode on."""

    def telemetry(self) -> Mapping[str, float]:
        """Timing of ticks and of inference since the actor was built."""

    def close(self) -> None:
        """Release all resources. The robot stays at rest."""


@runtime_checkable
class SimulatedRobot(Robot, Protocol):
    """A robot in simulated time. The simulated clock calls `advance` while the control loop sleeps."""

    def advance(self, duration_ns: int) -> None: ...


@runtime_checkable
class Expert(Protocol):
    """A scripted solution of a task. It replaces a person for demonstrations, takeovers and verdicts."""

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None: ...

    def act(self, observation: Observation) -> Array: ...

    def progress(self, observation: Observation) -> float:
        """Progress of the task from 0 to 1; never decreases while the expert acts."""


@runtime_checkable
class Task(Protocol):
    """A task: how to reset it, when it is done, its prompt and its scripted expert."""

    @property
    def spec(self) -> TaskSpec: ...

    @property
    def prompt(self) -> str: ...

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None: ...

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict: ...

    def expert(self) -> Expert:
        """Return a scripted expert. Raises UsageError if the task has none."""


@runtime_checkable
class Operator(Protocol):
    """The person, or script, that may take over. Polled once per tick and once after the last tick for a verdict."""

    @property
    def name(self) -> str:
        """Recorded with each episode: `none`, `scripted`, or the name of a device."""

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None: ...

    def poll(self, observation: Observation) -> HumanInput: ...


@runtime_checkable
class Policy(Protocol):
    """Observations in, action chunk out. Numpy outside; torch and normalization inside.

    Arrays have a leading batch axis. A key with history h has shape [B, h, ...], oldest first, left-padded, and
    comes with `<key>/mask` [B, h], false for padding. A policy that is `prompted` receives the prompt of this step as
    `prompt`, uint8 [B, L] (core.prompts).
    """

    @property
    def spec(self) -> PolicySpec: ...

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    def warmup(self) -> None: ...

    def load(self, snapshot: WeightSnapshot) -> None: ...

    def reset(self) -> None: ...


@runtime_checkable
class Labeler(Protocol):
    """Episode in, rewards out. Raises LabelError while it cannot answer; the episode then stays unlabeled.

    Optional abilities: `ChecksRobot`, `ChecksMetrics`, `JudgesObservations`, `SlowLabeler`, `RewardsAtEnd`, `HasVersion`.
    A constructor with a `folder` parameter receives a folder inside the run.
    """

    def label(self, episode: Episode) -> Labels: ...


@runtime_checkable
class Recorder(Protocol):
    """Records an episode while it runs, so that a crash loses seconds and not the episode."""

    def begin(self, start: EpisodeStart) -> None: ...

    def append(self, segment: Segment, *, after: Observation) -> None:
        """Write contiguous steps and the observation after the last one; durable on return."""

    def end(
        self,
        *,
        outcome: Outcome,
        judgement: Outcome | None,
        reset_s: float | None = None,
        has_success: bool = True,
    ) -> None:
        """Finish the episode. See `Episode` for the time of its reset and `has_success`."""


@runtime_checkable
class ReplayWriter(Protocol):
    """The only writer of a replay. Every call may be repeated."""

    def add(self, episode: Episode, labels: Labels) -> None:
        """Make the episode's steps available for sampling. Raises UsageError for evaluations and aborted episodes."""

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        """Add a segment of an episode that is still running: rewards are zero and no step is terminal."""

    def relabel(self, labels: Labels) -> None:
        """Replace the rewards of an episode."""

    def drop(self, episode_id: str) -> None:
        """Stop sampling from this episode."""


@runtime_checkable
class ReplayReader(Protocol):
    """Samples batches of labeled steps into arrays of the caller."""

    def size(self, view: View) -> int:
        """Number of steps that can be sampled from a view."""

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window = ...
    ) -> None:
        """Fill `into`, arrays [B, ...], with B steps of a view, sampled with replacement.

        `observation/<key>`: [B, ...]; with history [B, h, ...] and `observation/<key>/mask` [B, h].
        `action`: the executed action, [B, ...]; with a horizon [B, H, ...] and `action/mask` [B, H].
        `human`: whether a person gave the action; same leading axes as `action`.
        `achieved`: the motion that the action caused (core.achieved), like `action`; NaN where unknown.
        `reward`: the sum of gamma^k times the k-th reward, over `num_steps` steps or to the end.
        `next/<key>`: the observation after these steps, like `observation/<key>`.
        `discount`: gamma^n for the value of that observation; 0 after a terminal step.
        `prompt`: the prompt of this step, uint8 [B, 4096] (core.prompts).
        `steps_to_end`: steps from this one to the episode's end, this one included, int64 [B].
        `success`: whether the episode is labeled as a success, bool [B].
        """


@runtime_checkable
class Replay(ReplayReader, ReplayWriter, Protocol):
    """A whole replay, as the process that owns it uses it."""

    def open(self) -> str | None:
        """Load the stored content. Return the reason if it had to be discarded."""

    def close(self) -> None: ...

    def ids(self) -> list[str]:
        """Ids of the episodes that can be sampled."""

    def was_added(self, episode_id: str) -> bool:
        """Whether an episode was ever added or skipped, even if it is gone now."""

    def was_dropped(self, episode_id: str) -> bool: ...

    def reset(self) -> None:
        """Forget every episode."""

    def skip(self, episode_id: str, robot: RobotSpec, *, num_steps: int) -> None:
        """Count an episode as known without adding it. Its steps are older than all later ones."""

    def total_rows(self, robot: RobotSpec) -> int:
        """Total number of rows for a robot. An episode needs one row more than it has steps."""


@runtime_checkable
class Algorithm(Protocol):
    """A learning method: batches in, weights out."""

    @property
    def sample_request(self) -> SampleRequest: ...

    def update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        """Do one update. `batch` holds tensors with the names of `ReplayReader.sample`, one row per sampled step."""

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]: ...

    def state_dict(self) -> Mapping[str, Array]: ...

    def load_state_dict(self, state: Mapping[str, Array]) -> None: ...


@runtime_checkable
class WeightStore(Protocol):
    """Versioned snapshots of weights for any number of readers. Each reader remembers its own version."""

    def publish(self, components: Mapping[str, Mapping[str, Array]]) -> int: ...

    def latest(self, *, newer_than: int = 0) -> WeightSnapshot | None: ...

    def pin(self, version: int | None) -> None:
        """Serve this version to all readers. None unpins."""

    def versions(self) -> Iterable[int]: ...
