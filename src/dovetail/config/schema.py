"""The settings of a run. The settings of a plugin are in the `Config` of its class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dovetail.config.cluster import ClusterConfig
from dovetail.config.deploy import DeployConfig
from dovetail.config.improve import ImproveConfig
from dovetail.config.model import Config
from dovetail.config.plugins import build, locate, resolve, settings_of
from dovetail.config.policy_server import LearningServerConfig
from dovetail.config.safety import SafetyConfig
from dovetail.core.abilities import BringsTask
from dovetail.core.errors import PluginError

__all__ = [
    "DEFAULT_SECTIONS",
    "KIND_MARK",
    "NAMED_SECTIONS",
    "SECTION_KINDS",
    "ImagesConfig",
    "LabelingConfig",
    "LearnerConfig",
    "OfKind",
    "PluginSection",
    "RunConfig",
    "RunSettings",
    "StopWhenSolved",
    "TerminateOnSuccess",
]

SECTION_KINDS: dict[str, str] = {
    "task": "task",
    "robot": "robot",
    "cameras": "camera",  # a mapping from names
    "operator": "operator",
    "actor": "actor",
    "policy": "policy",
    "labels": "labeler",  # a list
    "replay": "replay",
    "algorithm": "algorithm",
}

NAMED_SECTIONS = ("cameras",)
"""Sections that hold several plugins by name."""

DEFAULT_SECTIONS: dict[str, Any] = {
    "operator": {"type": "none"},
    "actor": {"type": "sequential"},
    "labels": [{"type": "outcome"}],
    "replay": {"type": "mapped"},
}

CameraName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]

KIND_MARK = "x-dovetail-kind"  # marks a plugin section in RunConfig's JSON Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSection:
    """A plugin by name, with its validated config."""

    kind: str
    type: str
    config: Config

    def build(self, **handles: Any) -> Any:
        """Construct the plugin, with the handles that its kind receives."""
        return build(self.kind, self.type, self.config, **handles)

    def to_plain(self) -> dict[str, Any]:
        return {"type": self.type, **self.config.model_dump(mode="json")}

    @staticmethod
    def parse(kind: str, data: Any) -> PluginSection:
        """From `{type: name, key: value, ...}`, or from the bare name."""
        if isinstance(data, PluginSection):
            if data.kind != kind:
                context = {"type": data.type, "got": data.kind, "kind": kind}
                raise PydanticCustomError("plugin", "'{type}' is a plugin of kind {got}, not {kind}", context)
            return data
        if isinstance(data, str):
            data = {"type": data}
        if not isinstance(data, Mapping):
            raise PydanticCustomError("plugin_section", "Input should be a mapping with a type")
        if not isinstance(data.get("type"), str):
            raise PydanticCustomError("plugin_type", "Field 'type' is required", {"kind": kind})
        try:
            name, model = locate(kind, data["type"]).name, settings_of(kind, data["type"])
        except PluginError as problem:
            raise PydanticCustomError("plugin", "{problem}", {"problem": str(problem)}) from problem
        rest = {key: value for key, value in data.items() if key != "type"}
        return PluginSection(kind=kind, type=name, config=model.from_mapping(rest))


@dataclass(frozen=True, slots=True)
class OfKind:
    """Marks a field as a plugin section: `Annotated[PluginSection, OfKind("task")]`."""

    kind: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda data: PluginSection.parse(self.kind, data),
            serialization=core_schema.plain_serializer_function_ser_schema(PluginSection.to_plain),
        )

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {KIND_MARK: self.kind}


class StopWhenSolved(Config):
    """Stop online learning early, once the policy succeeds without help."""

    REMOVED: ClassVar[Mapping[str, str]] = {"min_env_steps": "use a larger window"}

    window: int = Field(default=20, ge=1, le=1000)
    """Number of recent online episodes to consider."""
    success_rate: float = Field(default=1.0, gt=0, le=1)
    """Share of these episodes that must succeed without intervention."""
    mean_return: float | None = None
    """Mean return of these episodes to reach, for an environment without success; null: never stop early."""


class RunSettings(Config):
    """Budgets, evaluations and the end of a run."""

    BASIC: ClassVar[Collection[str]] = (
        "seed",
        "demos",
        "env_steps",
        "eval_episodes",
        "eval_every_steps",
        "stop_when_solved",
    )
    CHANGEABLE: ClassVar[Collection[str]] = (
        "demos",
        "env_steps",
        "eval_episodes",
        "eval_every_steps",
        "scheduled_eval_episodes",
        "video_episodes",
        "video_camera",
        "checkpoint_every_s",
        "checkpoint_every_updates",
        "wandb",
        "stop_when_solved",
    )
    RENAMED: ClassVar[Mapping[str, str]] = {
        "noiseless_share": "deterministic_share",
        "schedule_episodes": "scheduled_eval_episodes",
        "showcase_episodes": "video_episodes",
        "showcase_camera": "video_camera",
    }

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of every random number."""
    demos: int = Field(default=20, ge=0)
    """Number of successful demonstrations to record before learning."""
    demo_noise: float = Field(default=0.1, ge=0)
    """Noise of the scripted expert in demonstrations; 0: none."""
    env_steps: int = Field(default=10_000, ge=0, le=10**9)
    """Control steps of online learning."""
    deterministic_share: float = Field(default=0.4, ge=0, le=1)
    """Share of online episodes without exploration noise. They show where the policy gets stuck without it."""
    eval_episodes: int = Field(default=100, ge=1)
    """Episodes of each evaluation."""
    eval_every_steps: int | None = Field(default=None, ge=1)
    """Online steps between evaluations during learning; null: none. The best one is saved as checkpoints/best."""
    scheduled_eval_episodes: int | None = Field(default=None, ge=1)
    """Episodes of each evaluation during learning; null: `eval_episodes`."""
    distill_every: int | None = Field(default=None, ge=1)
    """Online steps after which a residual policy is distilled: its successful episodes fine-tune its base. If the gate finds
    the new base not worse, a new run goes on with it, and its residual starts from zero. Null: never."""
    distill_into: str | None = Field(default=None, min_length=1)
    """The run or recipe whose policy is fine-tuned first; null: the run of the base (`policy.base: {run: RUN}`)."""
    distill_updates: int = Field(default=3000, ge=1)
    """Updates of fine-tuning."""
    eval_noise: bool = False
    """Evaluate with exploration noise. A policy without memory needs it to search for something hidden."""
    untrained_episodes: int = Field(default=20, ge=0)
    """Episodes of the evaluation before any training."""
    video_episodes: int = Field(default=4, ge=0)
    """Episodes before and after learning that the report's video shows."""
    video_camera: str = "front"
    """Camera of the report's video."""
    checkpoint_every_s: float = Field(default=60.0, gt=0)
    """Seconds between checkpoints."""
    checkpoint_every_updates: int | None = Field(default=None, ge=1)
    """Updates between checkpoints that are kept, as checkpoints/update-N; null: none. PPO: one update per rollout."""
    wandb: str | None = Field(default=None, min_length=1)
    """Weights & Biases project that also receives the metrics; null: TensorBoard only."""
    stop_when_solved: StopWhenSolved | None = None
    """When to stop before the budget is spent; null: never."""


class OptimizerConfig(Config):
    """How one component of the policy, or one network of the algorithm, learns."""

    type: Literal["adamw", "adam"] = "adamw"
    """AdamW, or Adam, which adds the weight decay to the gradient."""
    lr: float | None = Field(default=None, gt=0.0)
    """Learning rate; null: that of the algorithm."""
    weight_decay: float | None = Field(default=None, ge=0.0)
    """Weight decay; null: that of the algorithm."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Shares that the averages of the gradient and of its square keep at each update."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate falls to 0 at update `decay_updates`."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates in which the learning rate grows from 0, in proportion."""
    decay_updates: int | None = Field(default=None, ge=1)
    """Number of the update at which a `schedule` other than constant ends."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if (self.schedule == "constant") != (self.decay_updates is None):
            raise ValueError("a schedule that is not constant needs decay_updates, and only such a schedule")
        if self.decay_updates is not None and self.decay_updates <= self.warmup_updates:
            raise ValueError("decay_updates should be more than warmup_updates")
        return self


class CloningConfig(Config):
    """How behavior cloning learns, before the algorithm. The same settings as those of algorithm `imitation`."""

    batch_size: int = Field(default=128, ge=1)
    """Steps, or chunks, in one batch."""
    lr: float = Field(default=1e-3, gt=0.0)
    """Learning rate."""
    lr_decay: bool = False
    """Let the learning rate fall to 0 along a cosine, over `learner.bc_updates`."""
    max_grad_norm: float | None = Field(default=None, gt=0.0)
    """Norm to which the gradient is clipped; null: it is not. A small transformer needs 1.0."""


class LearnerConfig(Config):
    """How much the learner trains, and on what hardware."""

    BASIC: ClassVar[Collection[str]] = ("utd", "bc_updates", "warmup_updates")
    CHANGEABLE: ClassVar[Collection[str]] = ("max_bad_updates", "prefetch")

    utd: float = Field(default=4.0, gt=0)
    """Update-to-data ratio: updates per online step."""
    bc_updates: int = Field(default=2000, ge=0)
    """Updates of behavior cloning on the demonstrations: the baseline in the report."""
    cloning: CloningConfig = CloningConfig()
    """How behavior cloning learns."""
    start_from: Literal["cloning", "scratch"] = "cloning"
    """Initial weights of online learning: those of behavior cloning, or random ones."""
    warmup_updates: int = Field(default=500, ge=0)
    """Updates on demonstrations alone, before the first online step."""
    start_after_steps: int = Field(default=0, ge=0)
    """Online steps to collect before updates begin."""
    publish_every: int | None = Field(default=None, ge=1)
    """Updates between two versions of the weights for the robot; null: one version after each episode. On-policy
    algorithms publish with each rollout."""
    max_bad_updates: int = Field(default=100, ge=1)
    """An update with a loss or gradient that is not finite is skipped. The run stops after this many."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the networks during training. Parameters, optimizers and losses are always fp32."""
    accumulate: int = Field(default=1, ge=1)
    """Number of parts in which a batch is processed, to save memory. For algorithms with one loss."""
    ranks: int = Field(default=1, ge=1, le=64)
    """Processes for data parallel training, one per GPU. For all algorithms except recap."""
    shard: bool = False
    """With several ranks: divide policy and optimizer among them (FSDP). For imitation, hg_dagger and hi_ors."""
    optimizers: dict[str, OptimizerConfig] = Field(default_factory=dict)
    """Optimizers of components of the policy, by name: a smaller learning rate for `text` than for `expert`. Others have
    the settings of the algorithm. With sac, sac_flow, rlpd, residual, dsrl and rlt: of networks, such as `actor`."""
    prefetch: int | None = Field(default=None, ge=0, le=64)
    """Batches that a thread samples ahead; null: 2 if they are large, else 0. Does not change results."""


class TerminateOnSuccess(Config):
    """End an online episode once a labeler that judges single observations sees success."""

    every_steps: int = Field(default=1, ge=1)
    """Control steps between two judged observations."""
    probability: float | None = Field(default=None, gt=0, le=1)
    """Probability from which an observation counts as success; null: the labeler's calibrated threshold."""
    consecutive: int | None = Field(default=None, ge=1)
    """Successful observations in a row that end the episode; null: the labeler's calibrated number, or 3."""


class LabelingConfig(Config):
    """How several labelers decide together, and when a person is asked."""

    CHANGEABLE: ClassVar[Collection[str]] = ("max_labeling_episodes", "retry_s", "max_retry_s", "label_wait_s")
    RENAMED: ClassVar[Mapping[str, str]] = {"max_under_way": "max_labeling_episodes", "finish_s": "label_wait_s"}

    min_confidence: float = Field(default=0.8, ge=0, le=1)
    """The first labeler with at least this confidence decides. If none has it, a person is asked."""
    cross_check: bool = False
    """Ask all labelers, and a person if two of them disagree."""
    max_labeling_episodes: int = Field(default=4, ge=1, le=64)
    """Episodes that slow labelers process at the same time."""
    retry_s: float = Field(default=5.0, gt=0)
    """Seconds until a labeler that failed is asked again; doubles with each failure."""
    max_retry_s: float = Field(default=300.0, gt=0)
    """Upper limit of the doubled `retry_s`."""
    label_wait_s: float = Field(default=600.0, ge=0)
    """Seconds that the end of a run waits for outstanding labels."""
    hide_success: bool = False
    """Ignore the task's own success in online episodes, as on a real robot: only labels count. Evaluations still use it."""
    terminate_on_success: TerminateOnSuccess | None = None
    """End an online episode when a labeler detects success; null: never."""


class ImagesConfig(Config):
    """How recorded images are stored."""

    codec: Literal["auto", "lossless", "h264", "av1"] = "auto"
    """Video codec. auto: lossless for small images, H.264 for larger ones."""
    lossless_up_to_px: int = Field(default=128, ge=0)
    """With auto: largest side of an image that is stored lossless, in pixels."""
    crf: int | None = Field(default=None, ge=0, le=63)
    """Constant rate factor: lower is better and larger; null: 22 for H.264, 30 for AV1."""


class RunConfig(Config):
    """A whole run, resolved."""

    BASIC: ClassVar[Collection[str]] = ("device", "runtime")

    task: Annotated[PluginSection, OfKind("task")] | None = None
    """What to do. Null only with a robot that brings its own task, such as gym."""
    robot: Annotated[PluginSection, OfKind("robot")]
    """The arm, real or simulated."""
    cameras: dict[CameraName, Annotated[PluginSection, OfKind("camera")]] = Field(default_factory=dict)
    """Cameras next to the arm, by the names of their images. A simulated arm has its own (`robot.images`)."""
    operator: Annotated[PluginSection, OfKind("operator")] = Field(default=DEFAULT_SECTIONS["operator"])
    """Who can take over the arm, and with which device."""
    safety: SafetyConfig = SafetyConfig()
    """Limits for every action on its way to the robot."""
    actor: Annotated[PluginSection, OfKind("actor")] = Field(default=DEFAULT_SECTIONS["actor"])
    """The control loop: how action chunks follow each other."""
    policy: Annotated[PluginSection, OfKind("policy")]
    """Observation in, action chunk out."""
    policy_server: LearningServerConfig | None = None
    """The machine that computes the policy for the arm while this run trains it; null: the arm's own machine."""
    labels: list[Annotated[PluginSection, OfKind("labeler")]] = Field(
        default=DEFAULT_SECTIONS["labels"], min_length=1
    )
    """Labelers, which give rewards. They are asked in order; the first confident one decides."""
    labeling: LabelingConfig = LabelingConfig()
    """How several labelers decide together."""
    replay: Annotated[PluginSection, OfKind("replay")] = Field(default=DEFAULT_SECTIONS["replay"])
    """The replay buffer."""
    algorithm: Annotated[PluginSection, OfKind("algorithm")]
    """How the policy learns."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Device of the learner: cpu, cuda, cuda:1, or auto (a GPU if there is one). Small networks are faster on a CPU."""
    runtime: Literal["inline", "ray"] = "inline"
    """inline: one process, one step after another. ray: acting, labeling and learning in parallel."""
    cluster: ClusterConfig = ClusterConfig()
    """Machines, arms and roles, with runtime: ray."""
    run: RunSettings = RunSettings()
    """Budgets, evaluations and the end of the run."""
    learner: LearnerConfig = LearnerConfig()
    """How much the learner trains, and on what hardware."""
    deploy: DeployConfig | None = None
    """The gate for new weights; null: the arm always acts with the newest."""
    improve: ImproveConfig | None = None
    """Train and serve the base of policy `residual` first, then distill and deploy; null: only this run."""
    images: ImagesConfig = ImagesConfig()
    """How recorded images are stored."""

    @field_validator("cameras", mode="before")
    @classmethod
    def _without_removed_cameras(cls, cameras: Any) -> Any:
        """`front: null` removes a camera that another file or the run names."""
        if not isinstance(cameras, dict):
            return cameras
        return {name: section for name, section in cameras.items() if section is not None}

    @model_validator(mode="after")
    def _has_a_task(self) -> Self:
        if self.task is not None:
            return self
        robot = resolve("robot", self.robot.type)
        if not (isinstance(robot, BringsTask) and robot.brings_task):
            context = {"robot": self.robot.type}
            raise PydanticCustomError("task", "robot '{robot}' needs a task, e.g. task: push_cube", context)
        return self
