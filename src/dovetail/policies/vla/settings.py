"""Settings of vision-language-action policies. This module loads no torch."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.config.model import Config
from dovetail.core.errors import CheckpointError
from dovetail.core.image_sizes import Scaling
from dovetail.policies.checkpoints.folder_files import is_openpi, read_json
from dovetail.policies.components import ComponentConfig, NetworkPolicyConfig, TorchPolicyConfig
from dovetail.policies.settings import AdvantageInputConfig, GuidanceConfig, PathNoiseConfig, SteeringConfig

__all__ = [
    "MODEL",
    "LoraConfig",
    "NewModelConfig",
    "Pi0Config",
    "Pi05Config",
    "SmolVLAConfig",
    "UserModelConfig",
    "ValuedPi0Config",
    "ValuedPi05Config",
    "ValuedSmolVLAConfig",
    "ValuedVlaConfig",
    "VlaConfig",
]

MODEL = "model"  # the component with the weights of a user's model


class NewModelConfig(Config):
    """A small model with random weights, for `policy.new`."""

    size: Literal["tiny", "small"] = "tiny"
    """`tiny`: 1.2 million weights, for two cores. `small`: about 20 million, for a GPU. Images of 64 x 64 pixels."""
    horizon: int = Field(default=8, ge=1, le=200)
    """Number of actions in a chunk."""
    seed: int = Field(default=0, ge=0)
    """Of the random weights."""


class LoraConfig(Config):
    """Adapters for `policy.train=lora`."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank of each update B A."""
    alpha: float = Field(default=32.0, gt=0.0)
    """The update is multiplied by alpha / rank."""
    targets: str = r"(?!.*vision).*\.(q|k|v|o|gate|up|down)_proj"
    """Regular expression of the published names of the adapted layers. The default is all of text model and expert."""


class VlaConfig(TorchPolicyConfig, AdvantageInputConfig):
    BASIC: ClassVar[Collection[str]] = ("checkpoint", "images", "state", "device")
    preferred_image_size: ClassVar[int]  # the policy pads to a square by itself

    checkpoint: str | None = Field(default=None, min_length=1)
    """Folder with published weights in the format of LeRobot, transformers or openpi (converted to PyTorch)."""
    new: NewModelConfig | None = None
    """Instead of a checkpoint: a small model with RANDOM weights (pi0 and pi05), which can do nothing before training."""
    images: dict[str, str] = Field(min_length=1)
    """Camera of the checkpoint: camera of the robot. Cameras of the checkpoint that are not named here are masked
    (smolvla: only up to its `empty_cameras`)."""
    state: tuple[str, ...] = ()
    """Observation keys that make the state, in this order; empty: all low-dimensional ones of the robot."""
    state_axes: tuple[str, ...] = ()
    """Names of the state's axes in the checkpoint's order (joint1, or joint_pos.joint1); empty: the order of `state`, or
    that of the folder's action axes if it has the same names in another order."""
    action_axes: tuple[str, ...] = ()
    """Names of the robot's action axes in the checkpoint's order; empty: as the folder names them, or the robot's order."""
    relative_axes: tuple[str, ...] | None = None
    """Names of action axes that the checkpoint gives relative to the state at the same place. Null: as the folder says.
    openpi's folders do not say it."""
    stats: str | None = None
    """File with statistics instead of those in the folder: LeRobot's stats.json or openpi's norm_stats.json."""
    tokenizer: str | None = None
    """The model's tokenizer.json, or a folder with it. Null: in the checkpoint's folder."""
    adapter: str | None = None
    """Folder of PEFT with LoRA, merged when the weights are read. Null: the one in the checkpoint's folder, if any."""
    train: Literal["full", "expert", "lora"] = "full"
    """What a run trains: all weights, the action expert, or adapters of rank `lora.rank`."""
    freeze_vision: bool = False
    """With `train=full`: keep the weights of the vision tower."""
    cache_vision: bool = False
    """Store what a frozen vision tower makes of each image in the replay, so that no image is encoded twice."""
    lora: LoraConfig = Field(default_factory=LoraConfig)
    """Adapters, with `train=lora`."""
    steering: SteeringConfig | None = None
    """An actor that chooses the initial noise, for algorithm `dsrl`; `{}` has the defaults. Null: none."""
    fit_stats: bool = False
    """Compute the statistics of states and actions from the run's demonstrations, for a robot that the checkpoint does not
    know. False: those of the checkpoint or of `stats`."""
    recompute_layers: bool = False
    """Keep only the input of each layer in an update and compute the layer again (gradient checkpointing): less memory."""
    compile_layers: bool = False
    """Let torch compile the layers in updates. Takes about a minute to start."""
    device: str = Field(default="auto", pattern=r"^(cpu|auto|cuda(:\d+)?)$")
    """Where it computes. Auto: the first GPU, or the CPU if there is none."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of weights and products. Auto: bfloat16 on a GPU, float32 on a CPU."""
    execution: Literal["auto", "eager", "graph", "compiled_graph"] = "auto"
    """Auto: a CUDA graph of compiled parts on a GPU (about a minute to start), eager on a CPU. `graph` starts in seconds."""
    num_flow_steps: int | None = Field(default=None, ge=1)
    """Number of steps from noise to actions. Null: as the checkpoint says."""
    deterministic_noise: Literal["fixed", "seeded"] = "fixed"
    """Initial noise of deterministic chunks: always the same, or from the seed of each call."""
    guidance: GuidanceConfig = Field(default_factory=GuidanceConfig)
    """How a chunk continues the one before (real-time chunking)."""

    @property
    def preferred_image_scaling(self) -> Scaling:
        """As the weights were trained: LeRobot interpolates, openpi's client averages."""
        if self.checkpoint is None:  # new weights know neither
            return "averaged"
        folders = [Path(folder).expanduser() for folder in (self.adapter, self.checkpoint) if folder is not None]
        for folder in folders:  # an adapter's folder may have the config of its training
            with suppress(CheckpointError):  # the policy refuses the folder, with the reason
                return "averaged" if is_openpi(read_json(folder / "config.json")) else "interpolated"
        return "interpolated"

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        if self.checkpoint is not None and self.new is not None:
            raise ValueError("`checkpoint` and `new` are both set. Set one of them to null")
        if self.checkpoint is None and self.new is None:
            raise ValueError(
                "name a folder with weights as `checkpoint`, or set `new` for a small model of random weights"
            )
        if self.steering is not None and self.advantage_input:
            raise ValueError("steering (algorithm dsrl) and advantage_input (algorithm recap) exclude each other")
        if self.cache_vision and self.train == "full" and not self.freeze_vision:
            raise ValueError(
                "cache_vision needs a frozen vision tower: set freeze_vision, or train=expert or lora"
            )
        if self.freeze_vision and self.train != "full":
            raise ValueError(
                f"freeze_vision is for train=full; train={self.train} does not train the vision tower"
            )
        return self


class Pi0Config(VlaConfig):
    preferred_image_size: ClassVar[int] = 224  # PaliGemma's


class Pi05Config(VlaConfig):
    preferred_image_size: ClassVar[int] = 224  # PaliGemma's

    num_prompt_states: int | None = Field(default=None, ge=1)
    """Number of state values in the prompt, the rest zeros. Set 32 for weights that LeRobot 0.4 trained: it padded the
    state, and the folder does not say it. Null: only the state's own values, as openpi and LeRobot from 0.5 on."""


class SmolVLAConfig(VlaConfig):
    preferred_image_size: ClassVar[int] = 512  # SmolVLM2's


class ValuedVlaConfig(VlaConfig):
    """Settings of a VLA that PPO trains: the same as without values, and these."""

    path_noise: PathNoiseConfig = PathNoiseConfig(one_step=True)
    """How it explores. A deterministic chunk has no such noise."""
    value_hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    """Sizes of the value head's hidden layers. It reads the mean of the text model's tokens, and the state."""

    @model_validator(mode="after")
    def _check_other_algorithms(self) -> Self:
        if self.steering is not None:
            raise ValueError("steering is for algorithm dsrl, which freezes the model: remove it")
        if self.advantage_input:
            raise ValueError("advantage_input is for algorithm recap: remove it")
        return self


class ValuedPi0Config(ValuedVlaConfig, Pi0Config):
    pass


class ValuedPi05Config(ValuedVlaConfig, Pi05Config):
    pass


class ValuedSmolVLAConfig(ValuedVlaConfig, SmolVLAConfig):
    pass


class UserModelConfig(NetworkPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("model_class", "model_config", "checkpoint", "horizon")

    model_class: str = Field(pattern=r"^[^:\s]+:[^:\s]+$")
    """Your model, `package.module:Class`: a torch module with `forward`, and more methods to learn. See docs/vla.md."""
    model_options: dict[str, Any] = Field(
        default_factory=dict, alias="model_config"
    )  # pydantic has this name itself
    """Arguments of its constructor. Sizes that the robot decides are added if the constructor takes them."""
    checkpoint: str | None = Field(default=None, min_length=1)
    """Its weights: a safetensors file, a folder with model.safetensors or shards, a .pth or .pt file with tensors only, or a
    run. Null: new weights."""
    inputs: tuple[str, ...] = ()
    """Observation keys, including images and depth; empty: all low-dimensional ones of the robot."""
    history: dict[str, int] = Field(default_factory=dict)
    """Number of control ticks of history per key; other keys have 1."""
    horizon: int = Field(default=1, ge=1)
    """Number of actions in a chunk."""
    language: bool = True
    """Give the model the task's prompt."""
    loss_weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the losses that its `imitation_loss` returns by name. Losses that are not named have 1."""
    action_units: Literal["normalized", "robot"] = "normalized"
    """Units of the model's actions: from -1 to 1 between the robot's limits, or those of the robot."""

    @property
    def all_components(self) -> dict[str, ComponentConfig]:
        """`components`, with `checkpoint` as that of the model."""
        if self.checkpoint is None:
            return self.components
        model = self.components.get(MODEL, ComponentConfig())
        return {**self.components, MODEL: model.model_copy(update={"checkpoint": self.checkpoint})}
