"""Data that the folders exchange: frozen dataclasses with numpy arrays."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dovetail.core.specs import RobotSpec

__all__ = [
    "ActContext",
    "ActionChunk",
    "Array",
    "Episode",
    "EpisodeOrder",
    "EpisodeStart",
    "Event",
    "HumanInput",
    "Labels",
    "Observation",
    "Outcome",
    "PromptChange",
    "Purpose",
    "SampleRequest",
    "Segment",
    "Source",
    "Step",
    "TicksPerStep",
    "Verdict",
    "View",
    "WeightSnapshot",
    "Window",
]

Array = npt.NDArray[Any]
TicksPerStep = Fraction | int
"""Control ticks of one step of the policy, 1 or more: `core.policy_rate`."""


class Outcome(enum.StrEnum):
    """How an episode ended. A timeout is not terminal: learning bootstraps. Aborted episodes never train."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ABORTED = "aborted"

    def success(self, *, has_success: bool) -> bool | None:
        """Whether it is a success; None if the task does not detect success and no operator reported one."""
        return True if self is Outcome.SUCCESS else False if has_success else None


class Source(enum.IntEnum):
    """Who moved the arm in a step."""

    POLICY = 0
    HUMAN = 1


class Purpose(enum.StrEnum):
    """Why an episode was recorded. Evaluation never enters replay."""

    DEMO = "demo"
    ONLINE = "online"
    EVAL = "eval"


class Event(enum.StrEnum):
    """What an operator can signal, apart from moving the arm."""

    START = "start"
    PAUSE = "pause"
    RESET = "reset"
    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    STOP = "stop"
    ACKNOWLEDGE = "acknowledge"
    EMERGENCY = "emergency"  # stop and latch a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Sensor values by name at one moment, in monotonic time.

    `captured_ns` has the capture times of sensors slower than the control tick, such as cameras. All others were read at
    `time_ns`.
    """

    time_ns: int
    values: Mapping[str, Array]
    captured_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActContext:
    """Inputs of a policy apart from the observation.

    `prefix` [B, H, A] holds the committed actions (real-time chunking). `delay` is how many of them run before the new
    chunk can start. `horizon` is how many steps of a chunk are executed. All count steps of the policy.
    """

    deterministic: bool = False
    seed: int | None = None
    prefix: Array | None = None
    delay: int = 0
    horizon: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionChunk:
    """Actions for the next H ticks, [H, A]; [B, H, A] as a policy returns them for a batch."""

    actions: Array
    observed_ns: int
    policy_version: int
    extras: Mapping[str, Array] = field(default_factory=dict)

    def at(self, index: int) -> ActionChunk:
        """One chunk of a batch."""
        return ActionChunk(
            actions=self.actions[index],
            observed_ns=self.observed_ns,
            policy_version=self.policy_version,
            extras={name: value[index] for name, value in self.extras.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanInput:
    """One poll of an operator: an action while the operator drives, and an event if there is one.

    With `axes`, a mask bool [A], the operator drives only these axes of the action. The policy keeps the others.
    Axes in `keeps`, another mask, stand still, and their values in `action` are not used: a gripper that a person has not
    opened or closed since the takeover keeps its grip.
    """

    action: Array | None = None
    event: Event | None = None
    axes: Array | None = None
    keeps: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The task's result after a step: an outcome if the episode is over, reward components, metrics."""

    outcome: Outcome | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        return float(sum(self.rewards.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One control tick: observation, proposed and executed action, source, and the task's verdict after it.

    PPO's ratios use `proposed`; critics use `executed`.
    """

    observation: Observation
    proposed: Array  # [A]
    executed: Array  # [A]
    source: Source
    policy_version: int
    chunk_id: int
    chunk_index: int
    verdict: Verdict
    extras: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChange:
    """From this step of an episode on, the prompt is another one."""

    step: int
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Contiguous steps of one episode as columns, one row per step. The final segment has the last observation.

    Columns: `time_ns`, `observation/<key>`, `proposed`, `executed`, `source`, `policy_version`, `chunk_id`,
    `chunk_index`, `reward/<component>`, `metric/<name>`, `extra/<name>`.

    `prompt_changes` are those at its steps, in order. Without one, the prompt stays as it was.
    """

    episode_id: str
    first: int
    final: bool
    columns: Mapping[str, Array]
    last_observation: Observation | None = None
    prompt_changes: tuple[PromptChange, ...] = ()

    def __len__(self) -> int:
        return len(self.columns["executed"])

    @staticmethod
    def of(
        steps: Sequence[Step],
        *,
        episode_id: str,
        first: int = 0,
        last_observation: Observation | None = None,
        prompt_changes: Sequence[PromptChange] = (),
    ) -> Segment:
        """Stack steps into columns. A `last_observation` makes the segment final."""
        columns: dict[str, Array] = {
            "time_ns": np.array([s.observation.time_ns for s in steps], np.int64),
            "proposed": np.stack([s.proposed for s in steps]).astype(np.float32),
            "executed": np.stack([s.executed for s in steps]).astype(np.float32),
            "source": np.array([s.source for s in steps], np.uint8),
            "policy_version": np.array([s.policy_version for s in steps], np.int64),
            "chunk_id": np.array([s.chunk_id for s in steps], np.int64),
            "chunk_index": np.array([s.chunk_index for s in steps], np.int64),
        }
        for key in steps[0].observation.values:
            columns[f"observation/{key}"] = np.stack([s.observation.values[key] for s in steps])
        for kind, mappings in (
            ("reward", [s.verdict.rewards for s in steps]),
            ("metric", [s.verdict.metrics for s in steps]),
        ):
            for name in mappings[0]:
                columns[f"{kind}/{name}"] = np.array([m[name] for m in mappings], np.float32)
        for name in steps[0].extras:
            columns[f"extra/{name}"] = np.stack([s.extras[name] for s in steps])
        return Segment(
            episode_id=episode_id,
            first=first,
            final=last_observation is not None,
            columns=columns,
            last_observation=last_observation,
            prompt_changes=tuple(prompt_changes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """The facts known when an episode begins. `Episode` has the same fields and more."""

    id: str
    task: str
    prompt: str
    robot: RobotSpec
    operator: str
    purpose: Purpose
    seed: int
    config_hash: str
    started_unix_ns: int  # the only wall-clock time: steps count monotonic nanoseconds
    boot_id: str = ""  # of the machine whose monotonic clock timed the steps
    deterministic: bool | None = None  # without exploration noise; None: unknown, as in older episodes

    def to_json(self) -> dict[str, Any]:
        facts = {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "robot": self.robot.to_json(),
            "purpose": self.purpose.value,
            "seed": int(self.seed),
            "started_unix_ns": int(self.started_unix_ns),
        }
        if self.deterministic is None:  # the content of an older episode stays the same
            del facts["deterministic"]
        return facts

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EpisodeStart:
        """From the output of `to_json`. Other keys are ignored."""
        known = {field.name: data[field.name] for field in fields(EpisodeStart) if field.name != "deterministic"}
        known |= {"robot": RobotSpec.from_json(data["robot"]), "purpose": Purpose(data["purpose"])}
        return EpisodeStart(**known, deterministic=data.get("deterministic"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A recorded episode, from reset to end. Its rewards are in `Labels`. `prompt` is that of its first step."""

    id: str
    task: str
    prompt: str
    robot: RobotSpec
    operator: str
    purpose: Purpose
    outcome: Outcome
    judgement: Outcome | None  # the operator's verdict, if there is one
    seed: int
    config_hash: str
    started_unix_ns: int
    segments: tuple[Segment, ...]
    boot_id: str = ""
    deterministic: bool | None = None  # without exploration noise; None: unknown
    reset_s: float | None = None  # time of the reset before the first step, by the robot's clock; None: unknown
    has_success: bool = True  # False: the task does not detect success

    @staticmethod
    def of(
        start: EpisodeStart,
        segments: Sequence[Segment],
        *,
        outcome: Outcome,
        judgement: Outcome | None = None,
        reset_s: float | None = None,
        has_success: bool = True,
    ) -> Episode:
        """Build a finished episode."""
        known = {field.name: getattr(start, field.name) for field in fields(EpisodeStart)}
        return Episode(
            **known,
            outcome=outcome,
            judgement=judgement,
            segments=tuple(segments),
            reset_s=reset_s,
            has_success=has_success,
        )

    @property
    def start(self) -> EpisodeStart:
        return EpisodeStart(**{field.name: getattr(self, field.name) for field in fields(EpisodeStart)})

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @property
    def success(self) -> bool | None:
        return self.outcome.success(has_success=self.has_success)

    @property
    def last_observation(self) -> Observation:
        last = self.segments[-1].last_observation
        assert last is not None, "an episode's last segment is final"
        return last

    def column(self, name: str) -> Array:
        """One column over the whole episode, [T, ...]."""
        return np.concatenate([segment.columns[name] for segment in self.segments])

    @property
    def prompt_changes(self) -> tuple[PromptChange, ...]:
        """Where the prompt changed, in order; empty for most tasks."""
        return tuple(change for segment in self.segments for change in segment.prompt_changes)

    @property
    def num_human_steps(self) -> int:
        return int((self.column("source") == Source.HUMAN).sum())

    @property
    def num_interventions(self) -> int:
        """Number of takeovers: runs of consecutive human steps."""
        human = (self.column("source") == Source.HUMAN).astype(np.int8)
        return int((np.diff(human, prepend=np.int8(0)) == 1).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """One episode for an actor to run: its id, purpose and random streams."""

    id: str
    purpose: Purpose
    seed: int
    index: int  # number within its purpose; with the seed, it keys every random stream
    config_hash: str
    deterministic: bool = False
    robot_minutes: float = 0.0  # robot time so far; scripted help may fade with it
    started_unix_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Rewards of an episode. A discount is 0 after a terminal step and 1 elsewhere, timeouts included.

    The newest labels with the highest `priority` count, so a person's labels outrank those of a model. Labels with a
    negative priority are stored for comparison and never count. With `discard`, the episode never trains.
    """

    episode_id: str
    rewards: Array  # [T] float32
    discounts: Array  # [T] float32
    success: bool
    confidence: float
    labeler: str
    version: str
    priority: int = 0
    discard: bool = False
    why: str = ""  # the labeler's reason in one sentence, for display only


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which steps of a replay to sample. Each field narrows the selection.

    Values of `part`: `all`; `demo`; `online`, and of these `policy` and `human` (interventions); `prior` (demo + human);
    `accepted` (steps of successful episodes).

    `min_source_run` selects steps that start a run of at least so many steps from the same source, such as a whole chunk
    of human actions. `return_above` selects episodes whose rewards sum to more than this.
    """

    part: str = "all"
    robot: str | None = None
    task: str | None = None
    versions: tuple[int, int] | None = None  # first and last policy version; excludes steps without a policy
    max_staleness: int | None = None  # maximum number of versions behind the newest one in the replay
    half_life_steps: float | None = None  # a step this much older is sampled half as often; None: uniform
    min_source_run: int = 1
    min_episode_steps: int = 1  # excludes shorter episodes
    return_above: float | None = None  # excludes unlabeled episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What to read around a sampled step, within its episode.

    `num_steps` is the n of n-step returns. With `stop_at_takeover`, a return ends where a person takes over, because later
    rewards are not the policy's. A `horizon` above 1 reads the next actions, [H, A], padded and masked past the end.
    `history` counts steps per observation key, including the current one, left-padded and masked.

    All of them count steps of the policy, which last `ticks_per_step` recorded steps. The actions of one are combined
    (`core.policy_rate`), `gamma` discounts per policy step, and history has the observation nearest to each step.
    """

    gamma: float = 1.0
    num_steps: int = 1
    stop_at_takeover: bool = False
    horizon: int = 1
    history: Mapping[str, int] = field(default_factory=dict)
    ticks_per_step: TicksPerStep = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The batch that an algorithm needs: observation keys, rows per view, and what to read of each step.

    Views may change between updates; the number and content of rows may not. With `waits`, online updates are postponed
    until all views have steps; otherwise an empty view is an error.
    """

    observation_keys: tuple[str, ...]
    rows: Mapping[View, int]
    window: Window = field(default_factory=Window)
    next_observations: bool = True  # needed for bootstrapping
    prompts: bool = False  # the prompt of each step as `prompt` [B, L] (core.prompts)
    outcomes: bool = False  # `steps_to_end` and `success` of the episode
    achieved: bool = False  # achieved actions as `achieved` (core.achieved)
    human_axes: bool = False  # the axes that a person drove, if the robot has several moving parts
    when_empty: View | None = None  # sampled instead of an empty view
    waits: bool = False
    shares: Mapping[str, tuple[View, View]] = field(
        default_factory=dict
    )  # metric name: (view, reference view); their ratio is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSnapshot:
    """A version of the weights: named components, each a mapping of arrays, with their hashes. Arrays keep the type of the
    weights: see `core/bfloat16.py`."""

    version: int
    components: Mapping[str, Mapping[str, Array]]
    hashes: Mapping[str, str]
