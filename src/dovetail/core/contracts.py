"""The contracts between the rooms: small Protocols, numpy at every border.

The loop that uses them, as the inline runtime runs it:

    task.reset(robot, rng=rng)
    observation = robot.observe()
    while True:
        person = operator.poll(observation)
        action = person.action if person.action is not None else chunk.actions[i]
        executed = robot.send(action)
        clock.sleep_until(next_tick)
        observation = robot.observe()
        verdict = task.judge(robot, observation, num_steps=n)
        ...
    episodes.commit(episode)
    replay.add(segment, labeler.label(episode))
    metrics = algorithm.update(batch)
    weights.publish(algorithm.policy_weights())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.core.specs import PolicySpec, RobotSpec, TaskSpec
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
    "Clock",
    "Expert",
    "GuardedRobot",
    "Labeler",
    "Operator",
    "Policy",
    "Recorder",
    "ReplayReader",
    "ReplayWriter",
    "Robot",
    "SimulatedRobot",
    "Task",
    "WeightStore",
]


@runtime_checkable
class Clock(Protocol):
    """Monotonic time, and a way to wait for a moment of it."""

    def now_ns(self) -> int: ...

    def sleep_until(self, deadline_ns: int) -> None: ...


@runtime_checkable
class Robot(Protocol):
    """Hardware in, executed action out. Only ever handed out wrapped in the safety filter."""

    @property
    def spec(self) -> RobotSpec: ...

    def observe(self) -> Observation: ...

    def send(self, action: Array) -> Array:
        """Command one tick; returns the action really executed, at once. The clock, not this call, waits."""

    def stop(self) -> None:
        """Hold still and let go of the motion. May be called twice, and by anybody, at any time."""


@runtime_checkable
class GuardedRobot(Robot, Protocol):
    """A robot behind the safety filter: what everybody but the filter is given."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the last observation, such as a NaN; None: it may be acted on, and learned from."""

    def safety_extras(self) -> Mapping[str, Array]:
        """What the filter did to the last action, as columns to record: clipped axes, held, reasons."""

    def reset(self) -> None:
        """A new episode starts from where the robot now is."""

    def hold(self) -> Array:
        """Command standing still for a tick; returns the action that does it."""

    def ease(self) -> Array:
        """Half of the way from the last command to standing still: a few of them bring the arm to rest gently."""

    def trip(self, why: str) -> None:
        """Stop, and latch a fault that something else than the filter has found."""

    def acknowledge(self) -> None:
        """A person has seen the latched fault and takes responsibility for moving on."""

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        """Let a driver that can put each new frame of a camera where `next_buffer(key)` says, so that nobody copies
        it. A driver that cannot goes on as before."""


@runtime_checkable
class Actor(Protocol):
    """Runs episodes. How it ticks and when it thinks is its own affair."""

    @property
    def stopped(self) -> bool:
        """Whether the last episode ended because the run is to end."""

    @property
    def fault(self) -> str | None:
        """What the last episode was cut short by, and nothing moves for; None: all is well."""

    def acknowledge(self) -> None:
        """A person has seen the fault: the robot may move again."""

    def run(self, order: EpisodeOrder) -> Episode | None:
        """One episode from reset to verdict; None if it ended before its first step."""

    def load(self, snapshot: WeightSnapshot) -> None:
        """Act with these weights from the next episode on."""

    def telemetry(self) -> Mapping[str, float]:
        """How time was kept and what thinking cost, since the actor was made."""

    def close(self) -> None:
        """Let go of everything but the robot's standing still."""


@runtime_checkable
class SimulatedRobot(Robot, Protocol):
    """A robot whose time is ours: the simulated clock calls `advance` while the control loop sleeps."""

    def advance(self, duration_ns: int) -> None: ...


@runtime_checkable
class Expert(Protocol):
    """A scripted solver of a task: what demonstrates, takes over and judges where no person is at hand."""

    def reset(self, rng: np.random.Generator, *, noise: float = 0.0) -> None: ...

    def act(self, observation: Observation) -> Array: ...

    def progress(self, observation: Observation) -> float:
        """How far along the task is, 0 to 1, monotone along the expert's own way."""


@runtime_checkable
class Task(Protocol):
    """A job: how to reset it, when it is done, what it is called in words, and who can show it."""

    @property
    def spec(self) -> TaskSpec: ...

    @property
    def prompt(self) -> str: ...

    def reset(self, robot: Robot, *, rng: np.random.Generator) -> None: ...

    def judge(self, robot: Robot, observation: Observation, *, num_steps: int) -> Verdict: ...

    def expert(self) -> Expert:
        """A scripted expert; raises UsageError for a task that has none."""


@runtime_checkable
class Operator(Protocol):
    """Who may take over. Polled once a tick, and once more after the last one, to judge."""

    @property
    def name(self) -> str:
        """Recorded with each episode: `none`, `scripted`, or a person's device."""

    def reset(self, *, rng: np.random.Generator, robot_minutes: float) -> None: ...

    def poll(self, observation: Observation) -> HumanInput: ...


@runtime_checkable
class Policy(Protocol):
    """Observation in, action chunk out; numpy outside, torch and normalisation inside.

    Arrays have a leading batch axis. A key with history h has shape [B, h, ...], oldest first, left-padded, and
    comes with `<key>/mask` [B, h], true where a tick was really seen. A policy that is `prompted` is given the task in
    words as `prompt`, uint8 [B, 256] (core.prompts).
    """

    @property
    def spec(self) -> PolicySpec: ...

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    def warmup(self) -> None: ...

    def load(self, snapshot: WeightSnapshot) -> None: ...

    def reset(self) -> None: ...


@runtime_checkable
class Labeler(Protocol):
    """Episode in, rewards out. Raises LabelError while it cannot answer: then the episode waits.

    It may have more: `check(robot)` refuses, before anything moves, a robot that lacks what it looks at;
    `judge(observation)` is the probability that a single observation shows success; a `max_concurrent` says that it is
    slow, and about how many episodes it may be asked at once, on other threads; `rewards_at_the_end` that all but the last
    step of an episode earn nothing, so that steps can be learned from before it has ended. One that takes a `folder` is
    given a place in the run.
    """

    def label(self, episode: Episode) -> Labels: ...


@runtime_checkable
class Recorder(Protocol):
    """Takes an episode down while it happens, so that a crash costs its last seconds and not the episode."""

    def begin(self, start: EpisodeStart) -> None: ...

    def append(self, segment: Segment, *, after: Observation) -> None:
        """Contiguous steps, and the observation after the last of them; durable when it returns."""

    def end(self, *, outcome: Outcome, judgement: Outcome | None) -> None: ...


@runtime_checkable
class ReplayWriter(Protocol):
    """The one writer of a replay. Doing anything twice is harmless."""

    def add(self, episode: Episode, labels: Labels) -> None:
        """Make an episode's steps available for sampling. Evaluation and what was aborted are refused."""

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        """The same for a segment of an episode that is still running: no rewards yet, and never a true end."""

    def relabel(self, labels: Labels) -> None:
        """Put newer rewards in the place of older ones."""

    def drop(self, episode_id: str) -> None:
        """Draw nothing of this episode any more."""


@runtime_checkable
class ReplayReader(Protocol):
    """Labelled steps in, batches out, into arrays that the caller owns."""

    def size(self, view: View) -> int:
        """How many steps can be drawn from a view."""

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window = ...
    ) -> None:
        """Fill `into`, arrays [B, ...], with B steps of a view, drawn with replacement, and what is around them.

        `observation/<key>`: [B, ...], or [B, h, ...] with history and then `observation/<key>/mask` [B, h].
        `action`, `human`: what was executed, and whether by a person: [B, ...], or [B, H, ...] with a horizon and
        then `action/mask` [B, H]. `achieved`: like `action`, what it came to (core.achieved), where the robot tells;
        NaN where that is unknown, as while an episode runs. `reward`: the sum of gamma^k times the k-th reward, over
        `num_steps` steps or to the end. `next/<key>`: the observation after the last of them, like
        `observation/<key>`. `discount`: what its value counts for, gamma^n; 0 after a true end. `prompt`: the task in
        words, uint8 [B, 256] (core.prompts).
        """


@runtime_checkable
class Algorithm(Protocol):
    """One way to learn: batches in, weights out."""

    @property
    def wants(self) -> SampleRequest: ...

    def update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        """One update on what it wanted: tensors by the names of `ReplayReader.sample`, a row for each step drawn."""

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]: ...

    def state_dict(self) -> Mapping[str, Array]: ...

    def load_state_dict(self, state: Mapping[str, Array]) -> None: ...


@runtime_checkable
class WeightStore(Protocol):
    """Versioned snapshots. The reader owns its cursor: any number of readers, none in the others' way."""

    def publish(self, components: Mapping[str, Mapping[str, Array]]) -> int: ...

    def latest(self, *, newer_than: int = 0) -> WeightSnapshot | None: ...

    def pin(self, version: int | None) -> None:
        """Serve this version to everybody until unpinned with None."""

    def versions(self) -> Iterable[int]: ...
