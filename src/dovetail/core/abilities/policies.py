"""Abilities of policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Array, WeightSnapshot

__all__ = [
    "BringsWeights",
    "CachesFeatures",
    "CountsSampledActions",
    "FitsActions",
    "HasCanonicalSpace",
    "LearnsByImitation",
    "MovesToDevice",
    "NamesCheckpoint",
    "StagesWeights",
    "WrapsCanonicalPolicy",
]


@runtime_checkable
class BringsWeights(Protocol):
    """A policy whose weights come from elsewhere, such as a server or a published folder, and not from a run. Class
    attribute."""

    brings_weights: bool


@runtime_checkable
class NamesCheckpoint(Protocol):
    """Settings of a policy that may start from a published folder."""

    checkpoint: str | None


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
class FitsActions(Protocol):
    """A policy whose `fit_normalizer` also wants the demonstrated actions, under `action`. Class attribute."""

    fits_actions: bool


@runtime_checkable
class LearnsByImitation(Protocol):
    """A policy that can be trained here: see `dovetail.policies.trainable.TrainablePolicy`."""

    def imitation_loss(self, features: Any, actions: Any, mask: Any = None, *, generator: Any = None) -> Any: ...


@runtime_checkable
class MovesToDevice(Protocol):
    """A policy that can compute on another device than the CPU."""

    def to(self, device: Any) -> Any: ...


@runtime_checkable
class StagesWeights(Protocol):
    """A policy that takes new weights while it acts. What is frozen is in memory once, what is trained twice."""

    def stage(self, snapshot: WeightSnapshot) -> Callable[[], None]:
        """Check new weights and bring them to the policy's device; another thread may call `act` meanwhile.

        The result puts them into use. It takes less than a millisecond on a CPU and must not run during `act`."""


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
