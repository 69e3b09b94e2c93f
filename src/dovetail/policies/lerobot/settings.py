"""Settings of ACT and Diffusion Policy. This module loads no torch. Defaults of the networks are the published ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.policies.components import NetworkPolicyConfig
from dovetail.policies.settings import GuidanceConfig, SteeringConfig

__all__ = ["ActConfig", "DiffusionConfig", "LeRobotPolicyConfig"]

_OF_CHECKPOINT = ("images", "state", "environment", "state_axes", "action_axes")


class LeRobotPolicyConfig(NetworkPolicyConfig):
    """A new policy has `inputs`. A policy from a checkpoint has `state` and `images`, and its network is the folder's."""

    BASIC: ClassVar[Collection[str]] = ("inputs", "checkpoint")
    NETWORK: ClassVar[Collection[str]] = ("resnet", "width")  # what the folder of a checkpoint sets

    inputs: tuple[str, ...] = ()
    """Observation keys, including color images; empty: all low-dimensional ones of the robot."""
    checkpoint: str | None = Field(default=None, min_length=1)
    """LeRobot's folder with trained weights (config.json, model.safetensors). Null: new weights."""
    images: dict[str, str] = Field(default_factory=dict)
    """With a checkpoint: its cameras by name, each with a camera of the robot. All of them are needed."""
    state: tuple[str, ...] = ()
    """With a checkpoint: observation keys that make the state, in this order; empty: all low-dimensional ones."""
    environment: tuple[str, ...] = ()
    """With a checkpoint that reads `observation.environment_state`: observation keys that make it, in this order."""
    state_axes: tuple[str, ...] = ()
    """Names of the state's axes in the checkpoint's order (joint1, or joint_pos.joint1); empty: the order of `state`."""
    action_axes: tuple[str, ...] = ()
    """Names of the robot's action axes in the checkpoint's order; empty: the robot's order."""
    resnet: Literal[18, 34] = 18
    """Layers of the image encoder."""
    width: int = Field(default=64, ge=16, multiple_of=16)
    """Channels of the image encoder's first stage. Half the width takes a quarter of the time."""

    @property
    def preferred_image_size(self) -> int:
        """Longer side in pixels. A checkpoint scales images to the size that it was trained with."""
        return 128 if self.checkpoint is None else 1280

    @model_validator(mode="after")
    def _check_checkpoint(self) -> Self:
        if self.checkpoint is None:
            if given := [name for name in _OF_CHECKPOINT if getattr(self, name)]:
                raise ValueError(f"{given[0]} needs a checkpoint. Without one, name observations in inputs")
            return self
        if self.inputs:
            raise ValueError("inputs is for new policies. With a checkpoint, use state and images")
        fields = type(self).model_fields
        changed = [name for name in self.NETWORK if getattr(self, name) != fields[name].get_default()]
        if changed:
            raise ValueError(f"{', '.join(changed)} would change the network of the checkpoint. Remove it")
        return self


class ActConfig(LeRobotPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("horizon", "hidden")
    NETWORK: ClassVar[Collection[str]] = (
        *LeRobotPolicyConfig.NETWORK,
        "horizon",
        "hidden",
        "num_heads",
        "feedforward",
        "activation",
        "pre_norm",
        "num_encoder_layers",
        "num_decoder_layers",
        "style",
        "style_size",
        "num_style_layers",
    )

    horizon: int = Field(default=100, ge=1)
    """Number of actions in a chunk."""
    hidden: int = Field(default=512, ge=4, multiple_of=4)
    """Size of a token."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads."""
    feedforward: int = Field(default=3200, ge=1)
    """Size of the hidden layers between attentions."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the hidden layers between attentions."""
    pre_norm: bool = False
    """Normalize before each attention instead of after it."""
    num_encoder_layers: int = Field(default=4, ge=1)
    """Layers over the observation."""
    num_decoder_layers: int = Field(default=1, ge=1)
    """Layers over the chunk."""
    style: bool = True
    """Train with a style variable, which explains how demonstrations of one situation differ. It is 0 when acting."""
    style_size: int = Field(default=32, ge=1)
    """Size of the style variable."""
    num_style_layers: int = Field(default=4, ge=1)
    """Layers of the encoder of the style."""
    kl_weight: float = Field(default=10.0, ge=0.0)
    """Weight of the style's divergence from N(0, 1) in the loss."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of values that training drops."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.hidden % self.num_heads:
            raise ValueError(f"hidden ({self.hidden}) should be a multiple of num_heads ({self.num_heads})")
        return self


class DiffusionConfig(LeRobotPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("horizon", "channels")
    NETWORK: ClassVar[Collection[str]] = (
        *LeRobotPolicyConfig.NETWORK,
        "horizon",
        "num_observations",
        "channels",
        "kernel_size",
        "num_groups",
        "time_features",
        "film_scale",
        "num_keypoints",
        "separate_encoders",
        "resize",
        "crop",
        "schedule",
        "beta_range",
        "num_train_steps",
        "prediction",
        "clip_sample",
    )

    horizon: int = Field(default=16, ge=1)
    """Number of actions in a chunk."""
    steering: SteeringConfig | None = None
    """An actor that chooses the initial noise, for algorithm `dsrl` with `scheduler=ddim`; `{}` has the defaults. Null:
    none."""
    num_observations: int = Field(default=2, ge=1)
    """Number of policy steps of history, including the current one."""
    channels: tuple[int, ...] = Field(default=(512, 1024, 2048), min_length=1)
    """Channels of the U-Net's stages. Each stage after the first halves the time axis."""
    kernel_size: int = Field(default=5, ge=1)
    """Width of the convolutions in steps. Odd."""
    num_groups: int = Field(default=8, ge=1)
    """Groups of the group normalization in the U-Net."""
    time_features: int = Field(default=128, ge=4, multiple_of=2)
    """Size of the embedding of the denoising step."""
    film_scale: bool = True
    """Observations scale and shift the U-Net's channels. False: they only shift them."""
    num_keypoints: int = Field(default=32, ge=1)
    """Points that the spatial softmax finds in an image."""
    separate_encoders: bool = False
    """One image encoder per camera instead of one for all."""
    resize: tuple[int, int] | None = None
    """Height and width to which images are scaled. Null: as they are."""
    crop: tuple[int, int] | None = None
    """Height and width of the center that the encoder sees, after scaling. Null: everything."""
    schedule: Literal["squaredcos_cap_v2", "linear", "scaled_linear"] = "squaredcos_cap_v2"
    """How noise grows over the steps of training, by the names of the diffusers package."""
    beta_range: tuple[float, float] = (0.0001, 0.02)
    """First and last variance of a step, for the linear schedules."""
    num_train_steps: int = Field(default=100, ge=2)
    """Number of noise levels in training."""
    prediction: Literal["epsilon", "sample"] = "epsilon"
    """What the network predicts: the noise, or the clean actions."""
    clip_sample: float | None = Field(default=1.0, gt=0.0)
    """Limit of the predicted clean actions at each step, where 1 is the action's range. Null: none."""
    scheduler: Literal["ddpm", "ddim"] | None = None
    """How a chunk is denoised: with new noise at each step (ddpm) or without (ddim), which needs fewer steps. Null: as the
    checkpoint says, and ddpm for a new policy."""
    num_denoising_steps: int | None = Field(default=None, ge=1)
    """Steps from noise to a chunk. Null: as the checkpoint says, and all noise levels of training for a new policy."""
    deterministic_noise: Literal["fixed", "seeded"] = "fixed"
    """Noise of deterministic chunks: always the same, or from the seed of each call."""
    guidance: GuidanceConfig = Field(default_factory=GuidanceConfig)
    """How a chunk continues the one before (real-time chunking)."""

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        if bad := [size for size in self.channels if size < 1 or size % self.num_groups or size % 8]:
            raise ValueError(f"channels should be multiples of num_groups ({self.num_groups}) and 8, got {bad[0]}")
        if not self.kernel_size % 2:
            raise ValueError(f"kernel_size should be odd, got {self.kernel_size}")
        if not 0.0 < self.beta_range[0] <= self.beta_range[1] < 1.0:
            raise ValueError(f"beta_range should be 0 < first <= last < 1, got {self.beta_range}")
        return self

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        halvings = 2 ** (len(self.channels) - 1)
        if self.horizon % halvings:
            raise ValueError(
                f"horizon ({self.horizon}) should be a multiple of {halvings}, because {len(self.channels)} stages halve it"
            )
        if self.checkpoint is None and (self.num_denoising_steps or 1) > self.num_train_steps:
            raise ValueError(
                f"num_denoising_steps ({self.num_denoising_steps}) exceeds num_train_steps ({self.num_train_steps})"
            )
        return self
