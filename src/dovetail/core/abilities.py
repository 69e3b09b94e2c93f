"""Optional abilities of plugins. The runtime tests for each one with `isinstance`:

    if isinstance(robot, UsesBuffers):
        robot.use_buffers(next_buffer)

Some abilities are class attributes, because the runtime asks before it builds the object. The class itself is tested then:
`isinstance(resolve("operator", name), Demonstrates)`. Each Protocol has few members: `isinstance` reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.core.reset_steps import ResetStep
from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, Observation

__all__ = [
    "AsksAgain",
    "AsksPerson",
    "AsksVerdict",
    "BindsReset",
    "BringsTask",
    "BringsWeights",
    "CachesFeatures",
    "ChecksDevice",
    "ChecksMetrics",
    "ChecksRobot",
    "Closes",
    "ConfiguresFrameRate",
    "ConfiguresImageSize",
    "ConfiguresImages",
    "ConfiguresLayout",
    "ConfiguresLeader",
    "ConfiguresNormalization",
    "ConfiguresRealtime",
    "ConfiguresSpeed",
    "ConfiguresSwap",
    "ConfiguresTimeouts",
    "CountsSampledActions",
    "DecidesSuccess",
    "Demonstrates",
    "DescribesLink",
    "DrivenFromConsole",
    "DrivesAxes",
    "HasCanonicalSpace",
    "HasMode",
    "HasName",
    "HasVersion",
    "HasWorld",
    "HearsAcknowledgement",
    "IdentifiesArm",
    "IndependentStop",
    "JudgesObservations",
    "KeepsPace",
    "Leader",
    "LearnsByImitation",
    "LearnsFromRunning",
    "LearnsOnPolicy",
    "LimitsSteps",
    "MovesToDevice",
    "NeedsPackages",
    "NeedsVerdict",
    "Pauses",
    "PlansReset",
    "PrefersImageSize",
    "PreparesReset",
    "Probes",
    "RepeatsOutcome",
    "Restarts",
    "Resumes",
    "RewardsAtEnd",
    "Shards",
    "SlowLabeler",
    "StartsSlowly",
    "StopConnection",
    "TakesOverPart",
    "UsesBuffers",
    "WatchesStop",
    "WrapsCanonicalPolicy",
    "WrapsOperator",
    "WrapsOperators",
]

# ---- any plugin


@runtime_checkable
class Closes(Protocol):
    """Holds a device, file or simulator that must be closed."""

    def close(self) -> None: ...


# ---- labelers


@runtime_checkable
class JudgesObservations(Protocol):
    """A labeler that judges a single observation, fast enough for the control loop."""

    def judge(self, observation: Observation) -> float:
        """Return the probability that the observation shows success."""


@runtime_checkable
class DecidesSuccess(Protocol):
    """A labeler with calibrated values for ending an episode early."""

    @property
    def threshold(self) -> float:
        """Probability from which an observation counts as success."""

    @property
    def consecutive(self) -> int:
        """Number of successful observations in a row that end an episode."""


@runtime_checkable
class SlowLabeler(Protocol):
    """A labeler that may take seconds. It is called on other threads."""

    @property
    def max_concurrent(self) -> int:
        """Number of episodes that it labels at the same time."""


@runtime_checkable
class ChecksRobot(Protocol):
    """A labeler that needs something of the robot, such as a camera."""

    def check(self, robot: RobotSpec) -> None:
        """Raise UsageError for a robot that it cannot label. Called before anything moves."""


@runtime_checkable
class ChecksMetrics(Protocol):
    """A labeler that may read the task's metrics."""

    reads_metrics: bool

    def check_metrics(self, names: Collection[str]) -> None:
        """Raise UsageError if the task does not measure what this labeler reads."""


@runtime_checkable
class RewardsAtEnd(Protocol):
    """A labeler whose reward may be zero before the last step, so that running episodes can be learned from."""

    rewards_at_the_end: bool


@runtime_checkable
class AsksPerson(Protocol):
    """A labeler that stands for a person in the console. It comes last. Class attribute."""

    asks_person: bool


@runtime_checkable
class RepeatsOutcome(Protocol):
    """A labeler that only repeats what the task or the operator decided. Class attribute."""

    repeats_outcome: bool


@runtime_checkable
class ConfiguresTimeouts(Protocol):
    """The config of such a labeler: how sure it is that a timeout is no success."""

    timeout_confidence: float


@runtime_checkable
class AsksAgain(Protocol):
    """A labeler that stores its answers and can ignore the stored ones."""

    def ask_again(self) -> None:
        """Ask about every episode from now on; new answers replace stored ones."""


@runtime_checkable
class HasVersion(Protocol):
    """A labeler whose labels carry the version of its settings and weights."""

    version: str


@runtime_checkable
class HasName(Protocol):
    """A labeler whose labels carry another name than its plugin's."""

    name: str


# ---- robots and tasks


@runtime_checkable
class UsesBuffers(Protocol):
    """A robot that writes each camera frame into a given buffer, which saves a copy."""

    def use_buffers(self, next_buffer: Callable[[str], Array]) -> None:
        """Write each new frame of camera `key` into `next_buffer(key)`."""


class StopConnection(Protocol):
    """A second connection to an arm. See `IndependentStop`."""

    def stop(self) -> None:
        """Stop the arm. Raise an exception if the arm did not get the command."""

    def close(self) -> None: ...


@runtime_checkable
class IndependentStop(Protocol):
    """A robot that can be stopped over a second connection, even while another process controls it and hangs.

        def open_stop(self) -> StopConnection:
            return MyStopConnection(self._config.address)     # for example the controller's dashboard port

    The guard process builds its own robot object, calls `open_stop` before the arm may move, and keeps the connection open.
    Without this ability the guard first ends the control process, then calls `stop()` of its own robot object.
    """

    def open_stop(self) -> StopConnection: ...


@runtime_checkable
class DescribesLink(Protocol):
    """A robot that describes its connection, for `dovetail doctor` and `dovetail robot show`."""

    def describe_link(self) -> str:
        """One line without a period, such as the round trip and the clock offset. Does not move the robot."""


@runtime_checkable
class HearsAcknowledgement(Protocol):
    """A robot with errors of its own that only a person may clear."""

    def acknowledged(self) -> None:
        """Clear the robot's own errors. Called only after a person has acknowledged a latched fault; the fault stays if this
        raises."""


@runtime_checkable
class PreparesReset(Protocol):
    """A robot that may move by itself before the task's reset, for example back to its start joints."""

    def prepare_reset(self) -> None:
        """Called before the reset of each episode. May take long."""


@runtime_checkable
class Probes(Protocol):
    """A robot with extra columns to record beside each observation, such as a simulator's state."""

    def probe(self) -> Mapping[str, Array]: ...


@runtime_checkable
class BringsTask(Protocol):
    """A robot that contains its task, as a Gymnasium environment does. Class attribute."""

    brings_task: bool


@runtime_checkable
class HasWorld(Protocol):
    """A robot in a MuJoCo world, which can be rendered from any camera."""

    world: Any


@runtime_checkable
class LimitsSteps(Protocol):
    """A task with a maximum episode length."""

    max_steps: int


@runtime_checkable
class PlansReset(Protocol):
    """A task whose reset the control loop executes: motions through the safety filter, waits, requests to a person.

    Its `reset` moves nothing: the pose of that moment becomes the frame `reset`. It is called before each motion, too.
    """

    def reset_steps(self, robot: RobotSpec, *, rng: np.random.Generator) -> Sequence[ResetStep]:
        """The steps before an episode. Raises ConfigError for a robot that cannot execute them."""


@runtime_checkable
class BindsReset(Protocol):
    """A task for any robot, without a scene. A simulated robot gives it a function to call in `reset`."""

    def bind_reset(self, on_reset: Callable[[], None]) -> None: ...


@runtime_checkable
class AsksVerdict(Protocol):
    """A task that may ask a person after the time limit whether the episode was a success."""

    @property
    def verdict_request(self) -> str:
        """The text; empty: it does not ask."""


@runtime_checkable
class NeedsVerdict(Protocol):
    """A task that never decides success: an operator or a labeler does. Class attribute, also of its config."""

    needs_verdict: bool


@runtime_checkable
class TakesOverPart(Protocol):
    """An expert that takes over only some axes of the action, such as one arm of two. The policy keeps the others."""

    def takeover_axes(self, observation: Observation) -> Array | None:
        """Mask, bool [A], of the axes to take over now; None: all."""


# ---- operators


@runtime_checkable
class Demonstrates(Protocol):
    """An operator with which a person can give demonstrations. Class attribute."""

    demonstrates: bool


@runtime_checkable
class Leader(Protocol):
    """A leader arm: a person moves it by hand, and another arm follows. The constructor does no I/O.

        leader.follow(measured)           # while the policy drives, so that the takeover begins without a jump
        leader.release()                  # the person takes it
        positions = leader.read()

    One thread calls these methods; each may block for up to some 100 ms and connects if necessary. Every method raises
    RobotError if the leader is lost, and the operator must then stop driving.
    """

    @property
    def name(self) -> str:
        """Name of the device, recorded with each episode."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the values that `read` returns. They are compared with the axis names of the follower's action."""

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each value, as in action parts: rad, deg, m or 1."""

    @property
    def can_follow(self) -> bool:
        """Whether it has motors that `follow` can use. False: `follow` does nothing."""

    def read(self) -> Array:
        """Measure the positions now, float64 [len(axes)]."""

    def follow(self, positions: Array) -> None:
        """Move toward these positions, in the order and units of `axes`. Call it once per tick."""

    def release(self) -> None:
        """Let a person move it: motors without torque."""

    def close(self) -> None:
        """Release it and close the connection."""


@runtime_checkable
class StartsSlowly(Protocol):
    """A leader whose first reading may take longer than 10 s, for example because a process starts for it."""

    @property
    def start_timeout_s(self) -> float:
        """Seconds after which a leader without a reading is an error."""


@runtime_checkable
class DrivenFromConsole(Protocol):
    """An operator whose person drives from the console, which starts with the run. Class attribute."""

    driven_from_console: bool


@runtime_checkable
class NeedsPackages(Protocol):
    """A plugin that imports other packages at its first use: {module: name for pip}. Class attribute."""

    packages: Mapping[str, str]


@runtime_checkable
class ChecksDevice(Protocol):
    """An operator with a device at this machine."""

    def check_device(self) -> None:
        """Raise UsageError if the device is missing. Called before the run starts."""


@runtime_checkable
class Pauses(Protocol):
    """An operator with a device: after a pause from elsewhere, its switch must be pressed again."""

    def pause(self) -> None: ...


@runtime_checkable
class Resumes(Protocol):
    """An operator that holds the arm after a lost device until it is resumed."""

    def resume(self) -> None: ...


@runtime_checkable
class Restarts(Protocol):
    """An operator that judges observations: it must forget those from before the episode's first step."""

    def restart(self) -> None: ...


@runtime_checkable
class DrivesAxes(Protocol):
    """An operator that may drive only some axes of the action."""

    @property
    def drives(self) -> Array | None:
        """Mask, bool [A], of the axes that it drives; None: all."""

    def release_pose(self) -> None:
        """Something else moves the arm: start from the measured pose at the next poll."""


@runtime_checkable
class WatchesStop(Protocol):
    """An operator with a device that has an emergency stop. The class itself may be tested."""

    def watch(self, on_emergency: Callable[[str], None]) -> None:
        """Read the device from now on. Its emergency stop calls `on_emergency` with the operator's name."""


@runtime_checkable
class KeepsPace(Protocol):
    """An operator with which a person drives in simulated time, at the speed of the real clock."""

    def keep_pace(self, pace_s: float) -> None: ...


# ---- actors


@runtime_checkable
class HasMode(Protocol):
    """An actor with a `dovetail.actor.modes.Mode`: how it goes from chunk to chunk. Class attribute."""

    mode: Any


# ---- policies


@runtime_checkable
class BringsWeights(Protocol):
    """A policy whose weights come from elsewhere, such as a server or a published folder, and not from a run. Class
    attribute."""

    brings_weights: bool


@runtime_checkable
class CachesFeatures(Protocol):
    """A policy with a frozen image encoder. The replay stores its features instead of images, so that no frame is encoded
    twice. The policy accepts both."""

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        """The features of one frame per camera. Empty: the policy has no frozen encoder."""

    @property
    def feature_digest(self) -> str:
        """Identifies the encoder. Stored features of another digest are invalid."""

    def encode(self, key: str, frames: Array) -> Array:
        """Encode images [N, H, W, C] of a camera to features [N, ...]. They may be larger than the policy looks at."""


@runtime_checkable
class LearnsByImitation(Protocol):
    """A policy that can be trained here: see `dovetail.policies.trainable.TrainablePolicy`."""

    def imitation_loss(self, features: Any, actions: Any, mask: Any = None, *, generator: Any = None) -> Any: ...


@runtime_checkable
class MovesToDevice(Protocol):
    """A policy that can compute on another device than the CPU."""

    def to(self, device: Any) -> Any: ...


@runtime_checkable
class CountsSampledActions(Protocol):
    """A policy that samples another number of values than horizon * action size."""

    num_drawn: int


@runtime_checkable
class HasCanonicalSpace(Protocol):
    """A policy in the canonical action space that several embodiments share."""

    canonical_space: Any

    @property
    def robot(self) -> RobotSpec:
        """The spec of a robot in this space."""


@runtime_checkable
class WrapsCanonicalPolicy(Protocol):
    """A policy for one embodiment on top of a canonical policy."""

    canonical: HasCanonicalSpace


# ---- algorithms


@runtime_checkable
class LearnsFromRunning(Protocol):
    """An algorithm that may learn from an episode before it has ended."""

    learns_from_running: bool


@runtime_checkable
class LearnsOnPolicy(Protocol):
    """An algorithm that learns from rollouts of the current policy, without a replay. Class attribute."""

    rollout_settings: Any


@runtime_checkable
class Shards(Protocol):
    """An algorithm that can divide its networks over several processes (FSDP)."""

    def check_shard(self) -> None:
        """Raise UsageError for settings that cannot be sharded."""

    def shard(self) -> None: ...


# ---- config models of plugins


@runtime_checkable
class ConfiguresRealtime(Protocol):
    """A simulated robot that may run at the speed of the real clock."""

    realtime: bool


@runtime_checkable
class IdentifiesArm(Protocol):
    """A robot config that tells which arms it drives. Only one process may move an arm."""

    @property
    def arm_ids(self) -> Collection[str]:
        """One for each arm, equal in all configs that drive it, whatever their other settings; such as its address."""


@runtime_checkable
class ConfiguresImages(Protocol):
    """A robot with a choice of cameras."""

    images: Collection[str]


@runtime_checkable
class ConfiguresFrameRate(Protocol):
    """A camera with a frame rate."""

    fps: float


@runtime_checkable
class ConfiguresImageSize(Protocol):
    """A replay that stores images smaller than the camera's. The policy then looks at images of this size."""

    image_size: int | str  # longer side in pixels; "auto": 128 or what the policy prefers; "full": unlimited

    @property
    def max_side(self) -> int | None:
        """The size as a number, for a policy that prefers none; None: unlimited."""


@runtime_checkable
class PrefersImageSize(Protocol):
    """A policy that was trained with images of one size. Class attribute of its config."""

    preferred_image_size: int  # longer side in pixels


@runtime_checkable
class ConfiguresLayout(Protocol):
    """An actor that runs in one process or in several."""

    layout: str


@runtime_checkable
class ConfiguresSwap(Protocol):
    """An actor that loads new weights between episodes or between chunks."""

    swap_weights: str


@runtime_checkable
class ConfiguresSpeed(Protocol):
    """An operator with a maximum speed, relative to the arm's limits."""

    speed: float


@runtime_checkable
class WrapsOperator(Protocol):
    """An operator config that names another operator inside it."""

    operator: Any


@runtime_checkable
class WrapsOperators(Protocol):
    """An operator config that names several other operators."""

    operators: Collection[Any]


@runtime_checkable
class ConfiguresLeader(Protocol):
    """An operator config that names a leader arm, as a robot section. The runtime builds it."""

    leader: Any


@runtime_checkable
class ConfiguresNormalization(Protocol):
    """An algorithm that may normalize observations by running statistics."""

    normalize: bool
