"""The torch side of a policy: what an algorithm calls, as Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Generator, Tensor, nn

from dovetail.core.contracts import Policy
from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.policies.steering import SteeringActor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "ADVANTAGE",
    "AdvantageConditioned",
    "ExplainsAbilities",
    "HasDiscreteGripper",
    "HasEmbeddings",
    "HasFlatFeatures",
    "ShardsItself",
    "Steerable",
    "TrainablePolicy",
    "ValuedPolicy",
    "flat_features",
]

ADVANTAGE = "advantage"  # key of the indicator among the inputs of `features`


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy with parameters. Actions in torch are normalized to -1 ... 1: by the limits of the spec, or by how far an
    axis can move during a chunk (`policy.relative_parts`)."""

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """The networks by name. Optimizers train them, and weights contain them."""

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        """Set the mean and std of each observation from data, one [N, D] array per key."""

    @property
    def num_features(self) -> int:
        """F of the flat features: see `flat_features`."""

    @property
    def encoder(self) -> nn.ModuleDict:
        """The networks that turn images into features: one of the components, or empty if none are trained. The critic's
        loss trains them; the actor's loss does not."""

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        """Normalized observations [B, F]. Keys with history need their masks, as in `act`. `encoder` replaces the
        policy's encoder, for example by a target network. A policy whose `sample` raises UsageError may return a
        TensorDict [B] instead (images, tokens, masks): algorithms only pass it on. For networks of their own, they call
        `flat_features`."""

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Normalized actions [B, A] or flat chunks [B, H * A] with gradients, and their log-density [B]."""

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """The behavior cloning loss for normalized actions [B, A] or chunks [B, H, A]. The loss ignores actions, or axes of
        actions, where `mask`, [B, H] or [B, H, A], is false, even NaN. Random numbers come from `generator`."""

    def normalize_actions(self, actions: Tensor, observations: Mapping[str, Tensor] | None = None) -> Tensor:
        """Actions [B, A] or chunks [B, H, A]. Relative ones need the policy's inputs at the time of the chunk."""

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        """All arrays that an actor needs, from the policy's components or from other `components` of the same shape.
        A frozen component that came from a checkpoint is only its hash (`core/frozen_base.py`), so it is not copied."""


@runtime_checkable
class ValuedPolicy(TrainablePolicy, Protocol):
    """A trainable policy with a value function and the log-density of its actions, as PPO needs them.

    Its `act`, unless deterministic, returns three extras: the sample `drawn` [B, D] before it is clipped to the robot's
    limits, its `log_prob` and the `value` [B]. PPO's ratios use the sample, because the clipping is not part of the
    distribution.
    Log-density and entropy are [B] for single actions and [B, H], of each action, for chunks: the rest of a chunk may not be
    executed.
    """

    @property
    def num_drawn(self) -> int:
        """D: the size of an action, or more if the policy samples several values per action."""

    def value(self, features: Tensor) -> Tensor:
        """The expected return, [B]."""

    def evaluate_actions(self, features: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-density of `drawn` [B, D], the entropy, both [B] or [B, H], and the value [B]."""


@runtime_checkable
class AdvantageConditioned(TrainablePolicy, Protocol):
    """A trainable policy that reads an advantage indicator, as RECAP needs it.

    `features` then accepts the key `advantage` among the observations, int64 [B]: 1 positive, -1 negative, 0 none. Without
    the key, it is none. A policy with an embedding adds it to its conditions; one that reads text can append words to
    the prompt ("Advantage: positive"). `act` always uses positive.
    """

    @property
    def takes_advantage(self) -> bool:
        """Whether its config asks for the indicator."""


@runtime_checkable
class HasFlatFeatures(Protocol):
    """A policy whose `features` are a TensorDict, and which can summarize them as one vector per row."""

    def flat_features(self, features: Any) -> Tensor:
        """[B, num_features], without gradients: for critics and values."""


@runtime_checkable
class Steerable(TrainablePolicy, Protocol):
    """A flow whose initial noise a small actor may choose, as DSRL needs it. The chunk depends on nothing else at random."""

    @property
    def steering(self) -> SteeringActor | None:
        """The actor; None if the config asks for none."""

    @property
    def num_noise(self) -> int:
        """N: values of the noise that the actor chooses."""

    def steering_inputs(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Flat features [B, num_features] for actor and critics, and what `chunks_from_noise` needs, without gradients."""

    def chunks_from_noise(self, inputs: Any, noise: Tensor) -> Tensor:
        """The flow's normalized chunks [B, H, A] for noise [B, N], without gradients."""


@runtime_checkable
class HasEmbeddings(Protocol):
    """A policy whose inner features others may read, as RLT does."""

    @property
    def embedding_width(self) -> int:
        """W"""

    def embeddings(self, observations: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        """Its final embeddings [B, P, W] of the inputs of `act`, and their mask bool [B, P]."""


def flat_features(policy: TrainablePolicy, features: Any) -> Tensor:
    """What `policy.features` returned as [B, policy.num_features], for networks of an algorithm, such as critics. Raise
    UsageError if the policy has no such vector."""
    if isinstance(features, Tensor):
        return features
    if not isinstance(policy, HasFlatFeatures):
        raise UsageError(
            f"policy '{policy.spec.name}' gives its observations to its model only, but this algorithm has networks of its "
            "own that need them. Use algorithm 'ppo', 'imitation', 'hg_dagger' or 'hi_ors'"
        )
    return policy.flat_features(features)


@runtime_checkable
class ExplainsAbilities(Protocol):
    """A policy around a model of the user. The methods of that model decide which contracts the policy fulfills."""

    def why_not(self, contract: type) -> str:
        """Why it does not fulfill TrainablePolicy or ValuedPolicy: the methods that its model lacks. Empty if it does."""


@runtime_checkable
class ShardsItself(Protocol):
    """A policy whose components are no modules that are called as a whole, so that it must divide its weights itself."""

    def check_shard(self) -> None:
        """Raise UsageError for settings that cannot be sharded."""

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide the weights over the processes of a mesh (FSDP)."""


@runtime_checkable
class HasDiscreteGripper(Protocol):
    """A policy that can choose its gripper action by Q-values. `sample` and the critics then leave that axis out."""

    @property
    def grasp(self) -> nn.Module | None:
        """Features [B, F] to the Q-value of each choice, [B, 3]. None: the gripper is a continuous axis."""

    @property
    def gripper_axis(self) -> int: ...
