"""Settings of the policies that need torch, and of their parts. This module loads no torch, so that a wrong setting is
refused at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dovetail.config.model import Config
from dovetail.core.errors import did_you_mean
from dovetail.policies.components import NetworkPolicyConfig, TorchPolicyConfig
from dovetail.policies.embodiments.canonical_space import EmbodimentConfig

__all__ = [
    "ActorCriticConfig",
    "EncoderConfig",
    "FlowActorConfig",
    "FlowActorCriticConfig",
    "FlowConfig",
    "GaussianMLPConfig",
    "GuidanceConfig",
    "InnerPolicy",
    "Jacobian",
    "PathNoiseConfig",
    "ResidualConfig",
    "RlTokenConfig",
    "Schedule",
    "SharedConfig",
    "SteeredFlowConfig",
    "SteeringConfig",
    "ValuedFlowConfig",
]


MAX_DEPTH_M = 65.535  # uint16 in millimeters


class EncoderConfig(Config):
    type: Literal["cnn", "resnet", "frozen"] = "cnn"
    """A small CNN, a ResNet-10, or a frozen pretrained backbone with a trained head."""
    features: int = Field(default=256, ge=1)
    """Size of the image embedding."""
    shared: bool = False
    """One encoder for all cameras instead of one per camera."""
    width: int = Field(default=64, ge=8, multiple_of=8)
    """resnet: channels of the first stage. Half the width takes a quarter of the time."""
    arch: Literal["resnet10", "mobilenet_v2"] = "mobilenet_v2"
    """frozen: architecture of the backbone in the file."""
    file: str | None = None
    """frozen: safetensors file with the weights, made by `dovetail encoder convert`."""
    depth_range_m: tuple[float, float] = (0.0, 2.0)
    """Depth images: distances in meters that the encoder distinguishes. Nearer and farther ones count as the limits."""
    stride: Literal[8, 16, 32] = 16
    """frozen: pixels per cell of the feature map. A smaller stride suits fine work and needs more memory."""

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        if (self.file is None) == (self.type == "frozen"):
            raise ValueError(
                "encoder type 'frozen' needs a file. Make one with `dovetail encoder convert`"
                if self.file is None
                else f"encoder type '{self.type}' takes no file. Remove it, or use type 'frozen'"
            )
        return self

    @model_validator(mode="after")
    def _check_depth_range(self) -> Self:
        near, far = self.depth_range_m
        if not 0.0 <= near < far <= MAX_DEPTH_M:
            raise ValueError(f"depth_range_m should be 0 <= near < far <= {MAX_DEPTH_M}, got {self.depth_range_m}")
        return self


Schedule = Literal["exp", "linear", "ones", "zeros"]


Jacobian = Literal["vjp", "identity"]


class GuidanceConfig(Config):
    schedule: Schedule = "exp"
    """How the weight decreases over the old chunk, after the actions that run during inference."""
    beta: float = Field(default=5.0, gt=0.0)
    """Maximum guidance gain."""
    jacobian: Jacobian = "vjp"
    """How an error of the predicted actions changes the velocity: through the flow's Jacobian (vjp), or directly."""


class SteeringConfig(Config):
    """An actor that chooses the initial noise, for algorithm `dsrl`."""

    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of its hidden layers."""
    max_noise: float = Field(default=1.5, gt=0.0)
    """Limit of the chosen noise. The flow was trained on N(0, 1) and is unreliable beyond 2."""
    repeat: bool = False
    """Choose the noise of one action and repeat it for the chunk: far fewer values to learn, but fewer chunks to reach."""


class ActorCriticConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("hidden",)
    RENAMED: ClassVar[Mapping[str, str]] = {"std": "initial_std"}

    inputs: tuple[str, ...] = ()
    """Observation keys; empty: all low-dimensional ones of the robot."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the actor's hidden layers."""
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the value function's hidden layers."""
    initial_std: float = Field(default=0.5, gt=0.0, le=2.0)
    """Standard deviation of the first actions, where 1 is half of the robot's range. Training changes it."""


class GaussianMLPConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("hidden",)
    RENAMED: ClassVar[Mapping[str, str]] = {"grasp_noise": "gripper_epsilon"}

    inputs: tuple[str, ...] = ()
    """Observation keys, including images; empty: all low-dimensional ones of the robot."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the hidden layers."""
    history: dict[str, int] = Field(default_factory=dict)
    """Number of control ticks of history per key; other keys have 1."""
    horizon: int = Field(default=1, ge=1)
    """Number of actions in a chunk."""
    relative_parts: tuple[str, ...] = ()
    """Action parts whose targets are learned as offsets from the measured position. Use it for joint targets."""
    encoder: EncoderConfig = EncoderConfig()
    """The image encoder."""
    state_features: int = Field(default=64, ge=1)
    """Size of the embedding of all low-dimensional observations. Only used together with images."""
    initial_std: float | None = Field(default=None, ge=0.01, le=2.5)
    """Standard deviation of the first actions before tanh; 1 explores the whole range. Null: about 0.14, near a cloned
    policy."""
    gripper: Literal["continuous", "discrete"] = "continuous"
    """Discrete: close, keep or open, chosen by Q-values that sac and rlpd learn."""
    gripper_epsilon: float = Field(default=0.05, ge=0.0, le=1.0)
    """Probability of a random choice of the discrete gripper while exploring."""


class AdvantageInputConfig(Config):
    """Settings of a flow that algorithm recap can train."""

    advantage_input: bool = False
    """Read an advantage indicator (positive, negative or none), as algorithm recap needs it. It acts as positive."""
    advantage_guidance: float = Field(default=1.0, ge=0.0, le=10.0)
    """Weight w of classifier-free guidance, velocity = none + w (positive - none). 1: positive alone, half the time of
    other weights; 1 to 2.5 is usual."""


class FlowConfig(NetworkPolicyConfig, AdvantageInputConfig):
    BASIC: ClassVar[Collection[str]] = ("hidden", "horizon")
    RENAMED: ClassVar[Mapping[str, str]] = {"calm_noise": "deterministic_noise"}

    inputs: tuple[str, ...] = ()
    """Observation keys, including images; empty: all low-dimensional ones of the robot."""
    history: dict[str, int] = Field(default_factory=dict)
    """Number of control ticks of history per key; other keys have 1."""
    horizon: int = Field(default=16, ge=1)
    """Number of actions in a chunk."""
    num_flow_steps: int = Field(default=5, ge=1)
    """Number of Euler steps from noise to actions. Training depends on it: do not change it afterwards."""
    hidden: int = Field(default=128, ge=1)
    """Size of the hidden layers."""
    num_layers: int = Field(default=3, ge=1)
    """Number of residual layers."""
    relative_parts: tuple[str, ...] = ()
    """Action parts whose targets are learned as offsets from the measured position. Use it for joint targets."""
    encoder: EncoderConfig = EncoderConfig(features=64)
    """The image encoder."""
    prompt_features: int = Field(default=0, ge=0)
    """Size of the embedding of the task prompt, for a policy with several tasks; 0: no prompt."""
    deterministic_noise: Literal["fixed", "seeded"] = "fixed"
    """Initial noise of deterministic chunks: always the same, or from the seed of each call. With fixed noise all chunks
    deviate in the same direction, which can stop a policy of varied demonstrations short of its goal."""
    guidance: GuidanceConfig = Field(default_factory=GuidanceConfig)
    """How a chunk continues the one before (real-time chunking)."""


class SteeredFlowConfig(FlowConfig):
    steering_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the steering actor's hidden layers."""
    max_noise: float = Field(default=1.5, gt=0.0)
    """Limit of the chosen noise. The flow was trained on N(0, 1) and is unreliable beyond 2."""


class ResidualConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("base",)

    base: dict[str, Any]
    """The frozen base policy: a policy section, such as `{type: openpi, ...}`, or `{run: RUN}` for the newest weights of a
    run on this machine."""
    base_every: int | None = Field(default=None, ge=1)
    """Ticks after which the base proposes a new chunk. Null: half of its chunk, or 1 if `horizon` is above 1."""
    max_correction: float = Field(default=0.1, gt=0.0, le=1.0)
    """Largest correction of each axis, as a share of the axis' range. The algorithm raises the limit from 0 to this."""
    max_correction_of: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]] = Field(default_factory=dict)
    """Largest correction of single axes, by name; 0: this axis is never corrected."""
    inputs: tuple[str, ...] = ()
    """Observation keys that the correction sees, including images; empty: all low-dimensional ones of the robot."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the hidden layers."""
    horizon: int = Field(default=1, ge=1, le=1 << 12)
    """Actions in a chunk. 1: each tick has its own correction from the newest observation. More: the corrections of the next
    ticks are computed together, as actor types `rtc`, `naive` and `soft` need."""
    initial_std: float = Field(default=0.3, ge=0.01, le=2.5)
    """Standard deviation of the first corrections before tanh."""
    encoder: EncoderConfig = EncoderConfig(features=64)
    """The image encoder."""

    @property
    def proposal_steps(self) -> int:
        return self.horizon

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        _check_base_section(self.base)
        return self


class RlTokenConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("base",)

    base: dict[str, Any]
    """The frozen base policy: a section of pi0, pi05, smolvla or flow, or `{run: RUN}` for the newest weights of a run on
    this machine."""
    base_every: int | None = Field(default=None, ge=1)
    """Ticks after which the base proposes a new chunk while a person drives. Null: 1."""
    num_embeddings: int = Field(default=8, ge=1)
    """Groups of neighboring embeddings of the base. The replay stores the mean of each; 1 for a flow, which has one."""
    embedding_width: int = Field(default=2048, ge=1)
    """Width of the base's embeddings: 2048 for pi0 and pi05, 960 for smolvla, 96 for a new tiny model."""
    token_size: int = Field(default=64, ge=1)
    """Size of the token z."""
    token_width: int = Field(default=64, ge=4, multiple_of=4)
    """Width of the encoder's layers."""
    token_layers: int = Field(default=2, ge=1)
    """Layers of the encoder."""
    decoder_hidden: tuple[int, ...] = (128,)
    """Sizes of the decoder's hidden layers; empty: a linear decoder."""
    inputs: tuple[str, ...] = ()
    """Low-dimensional observation keys that actor and critic see beside the token; empty: all of the robot."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the actor's hidden layers."""
    horizon: int = Field(default=4, ge=2)
    """Actions in a chunk of the actor, at most those of the base."""
    exploration_std: float = Field(default=0.1, gt=0.0, le=1.0)
    """Standard deviation of the exploring actions, where 1 is half of the robot's range."""

    @property
    def proposal_steps(self) -> int:
        return self.horizon

    @property
    def embedding_size(self) -> int:
        return self.num_embeddings * self.embedding_width

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        _check_base_section(self.base)
        return self


def _check_base_section(base: Mapping[str, Any]) -> None:
    if len({"type", "run"} & base.keys()) != 1 or not isinstance(base.get("type", ""), str):
        raise ValueError("base should be a policy section with a type, or {run: RUN}")
    if "run" in base and (set(base) != {"run"} or not isinstance(base["run"], str)):
        raise ValueError("base {run: RUN} takes no other settings: the run has them")


class PathNoiseConfig(Config):
    type: Literal["sde", "learned"] = "sde"
    """Noise of the steps from noise to actions while exploring. sde: Flow-SDE, which keeps the flow's distribution. learned:
    Flow-Noise, a network of its own."""
    level: float = Field(default=0.5, gt=0.0, le=2.0)
    """sde: sigma is level * sqrt((1 - t) / t) at the time t of the path."""
    std_range: tuple[float, float] = (0.08, 0.16)
    """learned: limits of the standard deviation that a step adds."""
    one_step: bool = False
    """Only one step of a path has noise, chosen at random. An update then needs one evaluation of the flow per chunk."""

    @model_validator(mode="after")
    def _check_std_range(self) -> Self:
        if not 0.0 < self.std_range[0] < self.std_range[1]:
            raise ValueError(f"std_range should be 0 < low < high, got {self.std_range}")
        return self


class ValuedFlowConfig(FlowConfig):
    path_noise: PathNoiseConfig = PathNoiseConfig()
    """How it explores. A deterministic chunk has no such noise."""
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the value function's hidden layers. Its inputs are the features of the flow."""
    value_trains_encoder: bool = False
    """The value's loss also trains the encoder of images and prompts."""


class FlowActorConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("hidden",)
    RENAMED: ClassVar[Mapping[str, str]] = {"sigma": "sigma_range"}

    inputs: tuple[str, ...] = ()
    """Observation keys; empty: all low-dimensional ones of the robot."""
    history: dict[str, int] = Field(default_factory=dict)
    """Number of control ticks of history per key; other keys have 1."""
    velocity: Literal["gated", "transformer"] = "gated"
    """The velocity network: Flow-G (gated, faster) or Flow-T (transformer)."""
    hidden: int = Field(default=128, ge=4, multiple_of=4)
    """Size of the hidden layers."""
    num_layers: int = Field(default=2, ge=1)
    """Number of hidden layers."""
    num_flow_steps: int = Field(default=4, ge=1)
    """Number of steps from noise to action, each with new noise. Do not change it after training."""
    sigma_range: tuple[float, float] = (0.05, 0.8)
    """Limits of the learned noise sigma. Before tanh, the last step adds sigma / sqrt(num_flow_steps) to the action."""

    @model_validator(mode="after")
    def _check_sigma_range(self) -> Self:
        if not 0.0 < self.sigma_range[0] < self.sigma_range[1]:
            raise ValueError(f"sigma_range should be 0 < low < high, got {self.sigma_range}")
        return self


class FlowActorCriticConfig(FlowActorConfig):
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the value function's hidden layers."""


_INNER: dict[str, type[NetworkPolicyConfig]] = {  # policies that several arms can share
    "gaussian_mlp": GaussianMLPConfig,
    "flow": FlowConfig,
    "flow_actor": FlowActorConfig,
}


@dataclass(frozen=True, slots=True)
class InnerPolicy:
    """The type of the inner policy with its validated config."""

    name: str
    config: Any

    @staticmethod
    def parse(data: Any) -> InnerPolicy:
        if isinstance(data, InnerPolicy):
            return data
        rest = {"type": data} if isinstance(data, str) else dict(data) if isinstance(data, Mapping) else {}
        name = str(rest.pop("type", "")).replace("-", "_")
        if name not in _INNER:
            hint = did_you_mean(name, _INNER).strip()
            raise PydanticCustomError(
                "inner", "should have the type of a policy that several arms can share. {hint}", {"hint": hint}
            )
        return InnerPolicy(name, _INNER[name].from_mapping(rest))

    @staticmethod
    def model_of(data: Any) -> type[Config] | None:
        """The config model of this inner policy, for error messages and renamed keys."""
        return _INNER.get(data.get("type", "")) if isinstance(data, Mapping) else None

    def to_plain(self) -> dict[str, Any]:
        return {"type": self.name, **self.config.model_dump(mode="json")}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(cls.to_plain)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "object", "properties": {"type": {"enum": list(_INNER)}}, "required": ["type"]}


class SharedConfig(TorchPolicyConfig):
    policy: InnerPolicy
    """The inner policy: its type and settings. Its inputs and history use the canonical keys below."""
    embodiments: dict[str, EmbodimentConfig] = Field(default_factory=dict)
    """The arms, by the robot's name or embodiment. Include arms that will come later, because the sizes follow from all.
    Empty: the arms of the run."""

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        inner = self.policy.config
        if inner.device != "cpu" or inner.num_threads != 1:
            raise ValueError(
                "device and num_threads belong to the shared policy: set policy.device, not policy.policy.device"
            )
        return self
