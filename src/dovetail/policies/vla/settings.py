"""Settings of vision-language-action policies. This module loads no torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from dovetail.policies.components import TorchPolicyConfig
from dovetail.policies.settings import GuidanceConfig

__all__ = ["Pi0Config"]


class Pi0Config(TorchPolicyConfig):
    BASIC: ClassVar[Collection[str]] = ("checkpoint", "images", "state", "device")
    preferred_image_size: ClassVar[int] = 224  # PaliGemma's; the policy pads to a square by itself

    checkpoint: str
    """Folder with pi0 in the format of LeRobot, transformers or openpi (converted to PyTorch)."""
    images: dict[str, str] = Field(min_length=1)
    """Camera of the checkpoint: camera of the robot. Cameras of the checkpoint that are not named here are masked."""
    state: tuple[str, ...] = ()
    """Observation keys that make the state, in this order; empty: all low-dimensional ones of the robot."""
    state_axes: tuple[str, ...] = ()
    """Names of the state's axes in the checkpoint's order (joint1, or joint_pos.joint1); empty: the order of `state`."""
    action_axes: tuple[str, ...] = ()
    """Names of the robot's action axes in the checkpoint's order; empty: the robot's order."""
    relative_axes: tuple[str, ...] | None = None
    """Names of action axes that the checkpoint gives relative to the state at the same place. Null: as the folder says.
    openpi's folders do not say it."""
    stats: str | None = None
    """File with statistics instead of those in the folder: LeRobot's stats.json or openpi's norm_stats.json."""
    tokenizer: str | None = None
    """PaliGemma's tokenizer.json, or a folder with it. Null: in the checkpoint's folder."""
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
