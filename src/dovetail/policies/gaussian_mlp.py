"""A tanh-squashed Gaussian over single actions or chunks of them, from low-dimensional observations and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.embodiments.canonical_space import EMBODIMENT
from dovetail.policies.random_draws import integers, uniform
from dovetail.policies.images.encoders import EncoderConfig
from dovetail.policies.discrete_gripper import NUM_CHOICES, STAY, gripper_axis, margin_loss
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.components import NetworkPolicyConfig
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian

__all__ = ["GaussianMLP", "GaussianMLPConfig"]


class GaussianMLPConfig(NetworkPolicyConfig):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at, images among them; none: every low-dimensional one the robot gives."""
    hidden: tuple[int, ...] = Field(default=(128, 128), min_length=1)
    history: dict[str, int] = Field(default_factory=dict)
    """Control ticks of history per key; a key not named is seen once."""
    horizon: int = Field(default=1, ge=1)
    """Actions in a chunk."""
    encoder: EncoderConfig = EncoderConfig()
    """How images are looked at."""
    state_features: int = Field(default=64, ge=1)
    """Beside images, what is kept of all low-dimensional observations, lest they be drowned."""
    gripper: Literal["continuous", "discrete"] = "continuous"
    """Discrete: the gripper is closed, left or opened by what each is worth, which sac and rlpd learn beside the rest."""
    grasp_noise: float = Field(default=0.05, ge=0.0, le=1.0)
    """Of a discrete gripper: how often it is tried at random, while exploring."""


class GaussianMLP(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts."""

    Config: ClassVar[type[GaussianMLPConfig]] = GaussianMLPConfig

    def __init__(self, config: GaussianMLPConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        spec = policy_spec(
            "gaussian_mlp",
            robot,
            inputs=config.inputs,
            history=config.history,
            images=True,
            horizon=config.horizon,
        )
        super().__init__(spec, config.components, encoder=config.encoder)
        self._config = config
        discrete = config.gripper == "discrete"
        self._axis = gripper_axis(spec) if discrete else -1
        self._num_actions = robot.action.shape[0] - discrete  # of the Gaussian
        self._grasp: nn.Module | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            num_state = sum(spec.observation[key].shape[0] * spec.history.get(key, 1) for key in self._state)
            self._actor = mlp((self.num_features, *config.hidden, 2 * config.horizon * self._num_actions))
            self._open_eyes()
            if discrete:
                self._grasp = mlp((self.num_features, *config.hidden, NUM_CHOICES))
            if self._embeds_state:
                self._encoder["state"] = nn.Sequential(
                    nn.Linear(num_state, config.state_features), nn.LayerNorm(config.state_features), nn.Tanh()
                )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            # copies: views are read-only
            inputs = {key: torch.tensor(value, device=self._device) for key, value in observations.items()}
            features = self.features(inputs)
            mean, log_std = self._distribution(features)
            generator = None
            if not context.deterministic:
                if context.seed is not None:
                    generator = torch.Generator().manual_seed(context.seed)
                mean = mean + log_std.exp() * self._randn(features, self._shape(mean), generator).flatten(1)
            actions = torch.tanh(mean)
            if self._grasp is not None:
                choice = self._choose(self._grasp(features), noisy=not context.deterministic, generator=generator)
                choice = torch.where(choice == 0.0, self._told_last(inputs["gripper"]), choice)
                actions = torch.cat((actions[:, : self._axis], choice, actions[:, self._axis :]), 1)
        return self._chunk(actions.view(len(actions), self._spec.horizon, -1))

    def _choose(self, worth: Tensor, *, noisy: bool, generator: torch.Generator | None) -> Tensor:
        """-1 closes, 0 leaves, 1 opens: [B, 1]."""
        choice = worth.argmax(1)
        if noisy:
            other = integers(0, NUM_CHOICES, choice.shape, generator=generator, device=worth.device)
            luck = uniform(choice.shape, generator=generator, device=worth.device)
            choice = torch.where(luck < self._config.grasp_noise, other, choice)
        return (choice - STAY).float()[:, None]

    def _told_last(self, gripper: Tensor) -> Tensor:
        """What it was told before, -1 or 1, [B, 1]: not every gripper stays as it is when it is told nothing."""
        latest = gripper[:, -1] if gripper.ndim == 3 else gripper
        command = latest[:, self._spec.observation["gripper"].names.index("command"), None]
        return torch.where(command > 0.5, 1.0, -1.0)

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return (
            {"actor": self._actor}
            | ({"grasp": self._grasp} if self._grasp is not None else {})
            | ({"encoder": self._encoder} if len(self._encoder) else {})
        )

    @property
    def grasp(self) -> nn.Module | None:
        return self._grasp

    @property
    def gripper_axis(self) -> int:
        return self._axis

    @property
    def _state(self) -> tuple[str, ...]:
        """What is seen besides images."""
        return tuple(key for key in self._spec.observation if key not in (*self._images, EMBODIMENT))

    @property
    def _embeds_state(self) -> bool:
        return bool(self._images and self._state)

    @property
    def num_features(self) -> int:
        if not self._embeds_state:
            return super().num_features
        num_images = sum(self._spec.history.get(key, 1) for key in self._images)
        whose = self._spec.observation.get(EMBODIMENT)
        return (
            (whose.shape[0] if whose else 0)
            + self._config.state_features
            + num_images * self._config.encoder.features
        )

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        if not self._embeds_state:
            return super().features(observations, encoder=encoder)
        encoder = encoder or self._encoder
        pieces = self._pieces(observations, encoder)
        # of several arms, whose row it is comes first, as it is: who shares this policy looks for it there
        whose = [pieces[EMBODIMENT]] if EMBODIMENT in pieces else []
        state = torch.cat([pieces[key] for key in self._state], dim=1)
        return torch.cat((*whose, encoder["state"](state), *(pieces[key] for key in self._images)), dim=1)

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        real = self._real(features)
        if real is not None:
            real = real.repeat(1, self._spec.horizon)
        return sample_tanh_gaussian(*self._distribution(features), generator=generator, real=real)

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean, _ = self._distribution(features)
        if self._grasp is not None:
            keep = [axis for axis in range(actions.shape[-1]) if axis != self._axis]
            there = None if mask is None else mask.reshape(len(mean))
            motion = masked_mse(torch.tanh(mean), actions[:, keep], there)
            return motion + margin_loss(self._grasp(features), actions[:, self._axis] > 0.0, there)
        cloned = torch.tanh(mean).view(self._shape(mean))
        there = None if mask is None else mask.reshape(cloned.shape[:2])
        return masked_mse(cloned, actions.reshape_as(cloned), there, self._real(features))

    def _shape(self, mean: Tensor) -> tuple[int, int, int]:
        """Of the chunks that the Gaussian gives."""
        return len(mean), self._spec.horizon, self._num_actions

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self._actor(features))
