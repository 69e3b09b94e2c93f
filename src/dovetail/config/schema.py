"""What a run is made of: one typed tree. A plugin's part is described by the `Config` beside its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dovetail.config.cluster import ClusterConfig
from dovetail.config.model import Config
from dovetail.config.plugins import build, config_model, locate, resolve
from dovetail.config.safety import SafetyConfig
from dovetail.core.abilities import BringsTask
from dovetail.core.errors import PluginError

__all__ = [
    "DEFAULT_SECTIONS",
    "KIND_MARK",
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
    "operator": "operator",
    "actor": "actor",
    "policy": "policy",
    "labels": "labeler",  # a list of them
    "replay": "replay",
    "algorithm": "algorithm",
}

DEFAULT_SECTIONS: dict[str, Any] = {
    "operator": {"type": "none"},
    "actor": {"type": "sequential"},
    "labels": [{"type": "outcome"}],
    "replay": {"type": "mapped"},
}

KIND_MARK = "x-dovetail-kind"  # stands for a plugin section in RunConfig's own JSON Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSection:
    """A plugin by name, with its validated config: `section.build(**handles)` makes the object."""

    kind: str
    type: str
    config: Config

    def build(self, **handles: Any) -> Any:
        """Construct the plugin: its config first, the handles that its kind receives by keyword."""
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
            plugin = resolve(kind, data["type"])
            name = locate(kind, data["type"]).name
        except PluginError as problem:
            raise PydanticCustomError("plugin", "{problem}", {"problem": str(problem)}) from problem
        rest = {key: value for key, value in data.items() if key != "type"}
        return PluginSection(kind=kind, type=name, config=config_model(plugin).from_mapping(rest))


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
    """End online learning before its budget is spent, once the policy needs no help any more."""

    window: int = Field(default=20, ge=1, le=1000)
    """How many of the latest online episodes are looked at."""
    success_rate: float = Field(default=1.0, gt=0, le=1)
    """The share of them that must succeed, without any intervention."""
    min_env_steps: int = Field(default=0, ge=0)
    """Never stop before this many online steps."""


class RunSettings(Config):
    """How much of everything, and when to stop."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Every random stream derives from it."""
    demos: int = Field(default=20, ge=0)
    """Demonstrations recorded before learning starts."""
    demo_noise: float = Field(default=0.1, ge=0)
    """How noisy the scripted expert is while it demonstrates; 0 makes it exact."""
    env_steps: int = Field(default=10_000, ge=0, le=10**9)
    """Online budget in control steps."""
    noiseless_share: float = Field(default=0.4, ge=0, le=1)
    """Share of the online episodes without exploration noise: where a policy sticks only without it shows there."""
    eval_episodes: int = Field(default=100, ge=1)
    """Episodes in each evaluation."""
    eval_every_steps: int | None = Field(default=None, ge=1)
    """Online steps between evaluations while it learns; null: none. They never train, and the best makes
    checkpoints/best."""
    schedule_episodes: int | None = Field(default=None, ge=1)
    """Episodes in each of these; null: as many as in any other evaluation."""
    eval_noise: bool = False
    """Evaluate with the policy's own noise: where something is hidden, chance is how a policy without memory searches."""
    untrained_episodes: int = Field(default=20, ge=0)
    """Episodes that the untrained policy is given; it seldom has surprises."""
    showcase_episodes: int = Field(default=4, ge=0)
    """Episodes filmed for the report, before and after."""
    showcase_camera: str = "front"
    """The camera that films them."""
    checkpoint_every_s: float = Field(default=60.0, gt=0)
    """Seconds between checkpoints."""
    wandb: str | None = Field(default=None, min_length=1)
    """A project of Weights & Biases that curves go to as well; null: to TensorBoard alone."""
    stop_when_solved: StopWhenSolved | None = None
    """When to stop early; null spends the whole budget."""


class LearnerConfig(Config):
    """How the learner paces itself against the robot."""

    utd: float = Field(default=4.0, gt=0)
    """Update-to-data ratio: updates per online step."""
    bc_updates: int = Field(default=2000, ge=0)
    """Behaviour cloning updates on the demonstrations: the baseline that the report compares with."""
    start_from: Literal["cloning", "scratch"] = "cloning"
    """What online learning starts from."""
    warmup_updates: int = Field(default=500, ge=0)
    """Updates on demonstrations alone, before the first online step."""
    start_after_steps: int = Field(default=0, ge=0)
    """Online steps collected before updates begin."""
    publish_every: int | None = Field(default=None, ge=1)
    """Updates between two versions of the weights for the robot, which so is never further behind than these and one
    episode's; null: a version after each episode. On-policy algorithms publish with each rollout."""
    max_bad_updates: int = Field(default=100, ge=1)
    """Updates whose loss or gradient is not finite are skipped; after so many in a run, it stops. The last good checkpoint
    stays."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What networks compute in while they learn. Parameters, optimisers, losses and log-densities are fp32 in any case."""
    accumulate: int = Field(default=1, ge=1)
    """Pieces that a batch is gone through in, for a step that would not fit into memory; the same step up to rounding. For
    algorithms of one loss."""
    ranks: int = Field(default=1, ge=1, le=64)
    """Processes that learn as one, each from its part of every batch; on GPUs, one each. For algorithms that learn from
    replay."""
    shard: bool = False
    """With ranks: each keeps a part of the policy and of its optimiser only (FSDP). For large policies, and algorithms of
    one loss."""
    prefetch: int | None = Field(default=None, ge=0, le=64)
    """Batches sampled ahead by a thread; null: 2 of large ones, none of small ones. Changes no result."""


class TerminateOnSuccess(Config):
    """End an episode of practice when a labeler that can judge single observations says that the task is done."""

    every_steps: int = Field(default=1, ge=1)
    """Control steps between two observations that it is asked about."""
    probability: float | None = Field(default=None, gt=0, le=1)
    """From which one on it means done; null: what the labeler was calibrated to."""
    consecutive: int | None = Field(default=None, ge=1)
    """Answers in a row that must; null: what the labeler was calibrated to, or 3."""


class LabelingConfig(Config):
    """How the labelers in `labels` decide together, and what happens while they cannot."""

    min_confidence: float = Field(default=0.8, ge=0, le=1)
    """Who is at least so sure decides; where nobody is, a person is asked."""
    cross_check: bool = False
    """Ask all of them: the first who is sure decides, unless one of the others says otherwise. Then a person is asked."""
    max_under_way: int = Field(default=4, ge=1, le=64)
    """Episodes that slow labelers are asked about at once, beside the robot."""
    retry_s: float = Field(default=5.0, gt=0)
    """Seconds until a labeler that gave no answer is asked again; twice as long each time it gives none."""
    max_retry_s: float = Field(default=300.0, gt=0)
    """But never longer than this."""
    finish_s: float = Field(default=600.0, ge=0)
    """How long the end of a run waits for labels that are under way."""
    hide_success: bool = False
    """Keep the success of the task itself from practice: it ends no episode, and nobody is told. Labels are all there is, as
    on a real robot. Evaluations still go by the task."""
    terminate_on_success: TerminateOnSuccess | None = None
    """Whether a success that a labeler sees ends the episode; null: only the task, its time limit and people end it."""


class ImagesConfig(Config):
    """How the log keeps recorded images."""

    codec: Literal["auto", "lossless", "h264", "av1"] = "auto"
    """Auto keeps small pictures exactly and makes H.264 of larger ones."""
    lossless_up_to_px: int = Field(default=128, ge=0)
    """What is small, for auto: the longer side."""
    crf: int | None = Field(default=None, ge=0, le=63)
    """Constant rate factor: lower is better and larger; null: 18 of H.264, 30 of AV1."""


class RunConfig(Config):
    """A whole run, resolved."""

    task: Annotated[PluginSection, OfKind("task")] | None = None
    """The job. Null only with a robot that brings its own, such as gym."""
    robot: Annotated[PluginSection, OfKind("robot")]
    """Who does it."""
    operator: Annotated[PluginSection, OfKind("operator")] = Field(default=DEFAULT_SECTIONS["operator"])
    """Who may take over."""
    safety: SafetyConfig = SafetyConfig()
    """What every action passes on its way to the robot."""
    actor: Annotated[PluginSection, OfKind("actor")] = Field(default=DEFAULT_SECTIONS["actor"])
    """The control loop."""
    policy: Annotated[PluginSection, OfKind("policy")]
    """Observation in, action out."""
    labels: list[Annotated[PluginSection, OfKind("labeler")]] = Field(
        default=DEFAULT_SECTIONS["labels"], min_length=1
    )
    """Who gives rewards: asked in order, the first who is sure decides."""
    labeling: LabelingConfig = LabelingConfig()
    replay: Annotated[PluginSection, OfKind("replay")] = Field(default=DEFAULT_SECTIONS["replay"])
    """Where batches come from."""
    algorithm: Annotated[PluginSection, OfKind("algorithm")]
    """How the policy learns."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Where the learner computes: cpu, cuda, cuda:1, or auto, a GPU where there is one. Small networks are faster on a
    CPU."""
    runtime: Literal["inline", "ray"] = "inline"
    """One thing after another in one process, or everything at once: acting, labelling, storing and learning."""
    cluster: ClusterConfig = ClusterConfig()
    """Who runs where, with runtime: ray."""
    run: RunSettings = RunSettings()
    learner: LearnerConfig = LearnerConfig()
    images: ImagesConfig = ImagesConfig()

    @model_validator(mode="after")
    def _has_a_task(self) -> Self:
        robot = resolve("robot", self.robot.type)
        if self.task is None and not (isinstance(robot, BringsTask) and robot.brings_task):
            context = {"robot": self.robot.type}
            raise PydanticCustomError("task", "robot '{robot}' needs a task, e.g. task: push_cube", context)
        return self
