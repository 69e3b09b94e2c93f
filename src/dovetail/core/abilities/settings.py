"""Abilities of the config models of plugins: settings that the runtime reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from dovetail.core.image_sizes import Scaling

__all__ = [
    "ConfiguresDevice",
    "ConfiguresEmbedding",
    "ConfiguresFrameRate",
    "ConfiguresImageSize",
    "ConfiguresImages",
    "ConfiguresLayout",
    "ConfiguresLeader",
    "ConfiguresNormalization",
    "ConfiguresProposal",
    "ConfiguresRealtime",
    "ConfiguresServer",
    "ConfiguresSpeed",
    "ConfiguresSwap",
    "ConfiguresTimeouts",
    "IdentifiesArm",
    "LimitsFrameRate",
    "PrefersImageScaling",
    "PrefersImageSize",
    "WrapsOperator",
    "WrapsOperators",
]


@runtime_checkable
class ConfiguresTimeouts(Protocol):
    """The config of such a labeler: how sure it is that a timeout is no success."""

    timeout_confidence: float


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
class ConfiguresDevice(Protocol):
    """Settings of a policy that say where it computes actions."""

    device: str
    num_threads: int


@runtime_checkable
class ConfiguresImages(Protocol):
    """A robot with a choice of cameras."""

    images: Collection[str]


@runtime_checkable
class ConfiguresFrameRate(Protocol):
    """A camera with a frame rate."""

    fps: float


@runtime_checkable
class LimitsFrameRate(Protocol):
    """A camera that never gives more frames per second than this."""

    @property
    def max_fps(self) -> float: ...


@runtime_checkable
class ConfiguresImageSize(Protocol):
    """A replay that stores images smaller than the camera's. The policy then looks at images of this size."""

    image_size: int | str  # longer side in pixels; "auto": 128 or what the policy prefers; "full": unlimited
    image_scaling: str  # a Scaling; "auto": what the policy prefers

    @property
    def max_side(self) -> int | None:
        """The size as a number, for a policy that prefers none; None: unlimited."""


@runtime_checkable
class PrefersImageSize(Protocol):
    """A policy that was trained with images of one size. Attribute of its config."""

    preferred_image_size: int  # longer side in pixels


@runtime_checkable
class PrefersImageScaling(Protocol):
    """A policy that was trained with images that were scaled down in one way. Attribute of its config."""

    @property
    def preferred_image_scaling(self) -> Scaling: ...


@runtime_checkable
class ConfiguresLayout(Protocol):
    """An actor that runs in one process or in several."""

    layout: str


@runtime_checkable
class ConfiguresServer(Protocol):
    """A policy whose chunks a server computes, or such a server. A request takes at most both times, then the arm holds."""

    address: str
    connect_timeout_s: float
    timeout_s: float


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
class ConfiguresProposal(Protocol):
    """A policy config with a frozen base policy, as a policy section. The runtime builds it."""

    base: Mapping[str, Any]
    proposal_steps: int


@runtime_checkable
class ConfiguresEmbedding(Protocol):
    """A policy config whose policy also reads its base's embedding, of this many values."""

    embedding_size: int


@runtime_checkable
class ConfiguresNormalization(Protocol):
    """An algorithm that may normalize observations by running statistics."""

    normalize: bool
