"""Small plugin classes with different kinds of settings, and a base config made of them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path as FilePath
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from dovetail.config.model import Config

BASE = """\
task:
  type: support.sample_plugins:Task
  clearance_mm: 0.5
robot: support.sample_plugins:Robot
operator: support.sample_plugins:Plain
actor: support.sample_plugins:Plain
policy: {type: support.sample_plugins:Policy, hidden: [64, 64]}
labels: [support.sample_plugins:Plain]
algorithm: support.sample_plugins:Plain
"""


class Plain:
    """Does nothing.

    Has no settings either.
    """

    class Config(Config):
        pass

    def __init__(self, config: Plain.Config, **handles: Any) -> None:
        self.config, self.handles = config, handles


class Task(Plain):
    """A task with a few settings."""

    class Config(Config):
        clearance_mm: float = 1.0
        prompt: str = "insert the peg"
        time_limit: int = Field(default=100, ge=1)


class OtherTask(Plain):
    """Another task, which shares no setting with the first."""

    class Config(Config):
        angle_deg: float = 180.0


class Robot(Plain):
    """A robot that needs a task."""

    class Config(Config):
        viewer: bool = False
        arm: Literal["panda", "x5"] = "panda"


class BringsTask(Plain):
    """A robot that brings its own task."""

    brings_task: ClassVar[bool] = True

    class Config(Config):
        id: str


class Activation(Enum):
    RELU = "relu"
    TANH = "tanh"


class Encoder(Config):
    width: int = 8
    layer_norm: bool = True


class Policy(Plain):
    """A policy with every shape of setting."""

    class Config(Config):
        hidden: tuple[int, ...] = (256, 256)
        rate: float = 3e-4
        activation: Activation = Activation.RELU
        encoder: Encoder = Encoder()
        encoders: dict[str, Encoder] = Field(default_factory=dict)
        init: FilePath | None = None
        name: str = "mlp"
        target: int | str = "auto"

        @model_validator(mode="after")
        def _wide_enough(self) -> Policy.Config:
            if self.hidden and min(self.hidden) < 2:
                raise ValueError("every hidden layer needs 2 units or more")
            return self

    spec = act = warmup = load = reset = None


class NoConfig:
    pass


class TypedConfig:
    class Config(Config):
        type: str = "x"


not_a_class = 3
