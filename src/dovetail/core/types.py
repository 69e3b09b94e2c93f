"""The nouns: what travels between the rooms. Frozen, numpy only, never torch."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
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
    "Purpose",
    "SampleRequest",
    "Segment",
    "Source",
    "Step",
    "Verdict",
    "View",
    "WeightSnapshot",
    "Window",
]

Array = npt.NDArray[Any]


class Outcome(enum.StrEnum):
    """How an episode ended. A timeout is not a failure: it bootstraps. Aborted never trains."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ABORTED = "aborted"


class Source(enum.IntEnum):
    """Who really moved the arm in a step."""

    POLICY = 0
    HUMAN = 1


class Purpose(enum.StrEnum):
    """Why an episode was recorded. Evaluation never enters replay."""

    DEMO = "demo"
    ONLINE = "online"
    EVAL = "eval"


class Event(enum.StrEnum):
    """What a person can say besides moving the arm."""

    START = "start"
    PAUSE = "pause"
    RESET = "reset"
    SUCCESS = "success"
    FAILURE = "failure"
    DISCARD = "discard"
    STOP = "stop"
    ACKNOWLEDGE = "acknowledge"
    EMERGENCY = "emergency"  # stop, and latch a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the sensors said at one moment: monotonic time, and named arrays.

    `captured_ns` tells when those were taken that are slower than the robot's tick, such as a camera's frames; what is
    not named there was taken at `time_ns`.
    """

    time_ns: int
    values: Mapping[str, Array]
    captured_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActContext:
    """What a policy may want to know besides the observation.

    `prefix` [B, H, A] holds the actions already committed (real-time chunking), `delay` how many of them will
    have run before the answer can, `horizon` how many ticks an answer is executed for.
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
    """One poll of a person: an action while in control, else none; an event, or none."""

    action: Array | None = None
    event: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a task says after a step: an outcome once there is one, reward components, metrics."""

    outcome: Outcome | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        return float(sum(self.rewards.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One control tick: what was seen, asked for and done, by whom, and what the task said after it.

    Ratios in PPO use `proposed`, critics use `executed`.
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
class Segment:
    """Contiguous steps of one episode as columns, one row a step; the last one carries the true last observation.

    Columns: `time_ns`, `observation/<key>`, `proposed`, `executed`, `source`, `policy_version`, `chunk_id`,
    `chunk_index`, `reward/<component>`, `metric/<name>`, `extra/<name>`.
    """

    episode_id: str
    first: int
    final: bool
    columns: Mapping[str, Array]
    last_observation: Observation | None = None

    def __len__(self) -> int:
        return len(self.columns["executed"])

    @staticmethod
    def of(
        steps: Sequence[Step],
        *,
        episode_id: str,
        first: int = 0,
        last_observation: Observation | None = None,
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """What is known of an episode when it begins; `Episode` has the same fields, and how it went on."""

    id: str
    task: str
    prompt: str
    robot: RobotSpec
    operator: str
    purpose: Purpose
    seed: int
    config_hash: str
    started_unix_ns: int  # the one anchor in wall-clock time: steps count monotonic nanoseconds
    boot_id: str = ""  # of the machine whose monotonic clock the steps were timed by

    def to_json(self) -> dict[str, Any]:
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "robot": self.robot.to_json(),
            "purpose": self.purpose.value,
            "seed": int(self.seed),
            "started_unix_ns": int(self.started_unix_ns),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EpisodeStart:
        """From what `to_json` gave; more than that may stand beside it."""
        known = {field.name: data[field.name] for field in fields(EpisodeStart)}
        return EpisodeStart(
            **(known | {"robot": RobotSpec.from_json(data["robot"]), "purpose": Purpose(data["purpose"])})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What happened from one reset to the next, as it is kept. Rewards live in Labels, beside it."""

    id: str
    task: str
    prompt: str
    robot: RobotSpec
    operator: str
    purpose: Purpose
    outcome: Outcome
    judgement: Outcome | None  # what the operator said at the end, if anybody did
    seed: int
    config_hash: str
    started_unix_ns: int
    segments: tuple[Segment, ...]
    boot_id: str = ""

    @staticmethod
    def of(
        start: EpisodeStart, segments: Sequence[Segment], *, outcome: Outcome, judgement: Outcome | None = None
    ) -> Episode:
        """An episode that has ended."""
        known = {field.name: getattr(start, field.name) for field in fields(EpisodeStart)}
        return Episode(**known, outcome=outcome, judgement=judgement, segments=tuple(segments))

    @property
    def start(self) -> EpisodeStart:
        return EpisodeStart(**{field.name: getattr(self, field.name) for field in fields(EpisodeStart)})

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @property
    def last_observation(self) -> Observation:
        last = self.segments[-1].last_observation
        assert last is not None, "an episode's last segment is final"
        return last

    def column(self, name: str) -> Array:
        """One column over the whole episode, [T, ...]."""
        return np.concatenate([segment.columns[name] for segment in self.segments])

    @property
    def num_human_steps(self) -> int:
        return int((self.column("source") == Source.HUMAN).sum())

    @property
    def num_interventions(self) -> int:
        """How often a person took over: runs of human steps."""
        human = (self.column("source") == Source.HUMAN).astype(np.int8)
        return int((np.diff(human, prepend=np.int8(0)) == 1).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """What an actor is asked to do: one episode, its identity, and the streams of chance it runs on."""

    id: str
    purpose: Purpose
    seed: int
    index: int  # which episode of its purpose: with the seed, it keys every random stream
    config_hash: str
    deterministic: bool = False
    robot_minutes: float = 0.0  # experience so far; a person helps less as it grows
    started_unix_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Rewards for an episode. A discount is 0 after a true end and 1 elsewhere, timeouts included.

    Of all that was said about an episode, the newest of the highest `priority` counts: a person's word stays,
    whatever a machine says after it. Below 0 it is an opinion: kept, to compare and to show, and never counted.
    An episode whose labels say `discard` never trains, whatever its rewards.
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
    why: str = ""  # in a sentence, where a labeler gives its reasons: for people, and nothing is decided by it


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which steps of a replay to draw from, and how; what is not said is not asked.

    Parts: `all`; `demo`; `online`, and of it `policy` and `human` (interventions); `prior` (demo + human);
    `accepted` (of successful episodes).

    `min_run` asks for steps from which on, themselves included, so many were taken by the same hand: where a whole
    chunk of a person's actions begins, say. `return_above` asks for episodes whose rewards add up to more than that.
    """

    part: str = "all"
    robot: str | None = None
    task: str | None = None
    versions: tuple[int, int] | None = None  # policy versions, first and last; steps that no policy took are out
    max_staleness: int | None = None  # the same, counted back from the newest version that acted
    half_life_steps: float | None = None  # steps this much older are drawn half as often; None: all alike
    min_run: int = 1
    min_episode_steps: int = 1  # of episodes at least so long
    return_above: float | None = None  # what has no labels yet is out


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is gathered around a drawn step, never across its episode's border.

    `num_steps` rewards are added up before the rest is bootstrapped; fewer `until_taken_over`, where a person took over
    from the policy: what a rescue earned is not the policy's. A `horizon` beyond 1 asks for the actions
    from the step on, [H, A], padded and masked past the end. `history` counts control ticks per observation key,
    the present one included, left-padded and masked.
    """

    gamma: float = 1.0
    num_steps: int = 1
    until_taken_over: bool = False
    horizon: int = 1
    history: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What an algorithm wants sampled: observation keys, rows per view in one batch, and what of each step.

    Views may change as learning goes on; how many rows there are, and what is in each, may not. Who `waits` does no
    updates online, instead of failing, until all views have something to give; what was earned stays owed.
    """

    observation_keys: tuple[str, ...]
    rows: Mapping[View, int]
    window: Window = field(default_factory=Window)
    next_observations: bool = True  # who does not bootstrap does not want them
    prompts: bool = False  # the task in words, as `prompt` [B, 256]: see core.prompts
    achieved: bool = False  # what each action came to, as `achieved`, like `action`: see core.achieved
    when_empty: View | None = None  # what to draw from while a view has nothing to give; None: that is an error
    waits: bool = False
    shares: Mapping[str, tuple[View, View]] = field(default_factory=dict)  # to tell: a view's share in another


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSnapshot:
    """A version of the weights: named components, each a mapping of arrays, with their hashes."""

    version: int
    components: Mapping[str, Mapping[str, Array]]
    hashes: Mapping[str, str]
