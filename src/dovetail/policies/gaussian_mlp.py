"""A tanh-squashed Gaussian over single actions or chunks, from low-dimensional observations and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.discrete_gripper import KEEP, NUM_CHOICES, gripper_axis, margin_loss
from dovetail.policies.embodiments.canonical_space import EMBODIMENT
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.random_draws import integers, seeded_generator, uniform
from dovetail.policies.relative_targets import RelativeTargets
from dovetail.policies.settings import GaussianMLPConfig
from dovetail.policies.tanh_gaussian import mean_and_log_std, sample_tanh_gaussian, unclamped_log_std

__all__ = ["GaussianMLP", "GaussianMLPConfig"]


class GaussianMLP(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts."""

    Config: ClassVar[type[GaussianMLPConfig]] = GaussianMLPConfig
    activated: ClassVar[frozenset[str]] = frozenset({"actor"})

    def __init__(self, config: GaussianMLPConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        spec = policy_spec(
            "gaussian_mlp",
            robot,
            inputs=config.inputs,
            history=config.history,
            images=True,
            horizon=config.horizon,
        )
        relative = RelativeTargets.of(config.relative_parts, robot, spec) if config.relative_parts else None
        super().__init__(spec, config.components, encoder=config.encoder, relative=relative)
        self._config = config
        discrete = config.gripper == "discrete"
        self._axis = gripper_axis(spec) if discrete else -1
        self._num_actions = robot.action.shape[0] - discrete  # continuous axes
        self._grasp: nn.Module | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            num_state = sum(spec.observation[key].shape[0] * spec.history.get(key, 1) for key in self._state)
            sizes = (self.num_features, *config.hidden, 2 * config.horizon * self._num_actions)
            self._actor = mlp(sizes, activation=self._activation("actor"))
            if config.initial_std is not None:
                last = self._actor[-1]
                assert isinstance(last, nn.Linear)
                log_stds = last.bias[config.horizon * self._num_actions :]  # after the means
                nn.init.constant_(log_stds, unclamped_log_std(config.initial_std))
            self._make_image_encoders()
            if discrete:
                self._grasp = mlp((self.num_features, *config.hidden, NUM_CHOICES))
            if self._embeds_state:
                self._encoder["state"] = nn.Sequential(
                    nn.Linear(num_state, config.state_features), nn.LayerNorm(config.state_features), nn.Tanh()
                )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            inputs = self._tensors(observations)
            features = self.features(inputs)
            mean, log_std = self._distribution(features)
            generator = seeded_generator(context.seed)
            if not context.deterministic:
                mean = mean + log_std.exp() * self._randn(features, self._shape(mean), generator).flatten(1)
            actions = torch.tanh(mean)
            if self._grasp is not None:
                choice = self._choose(
                    self._grasp(features), explore=not context.deterministic, generator=generator
                )
                choice = torch.where(choice == 0.0, self._last_command(inputs["gripper"]), choice)
                actions = torch.cat((actions[:, : self._axis], choice, actions[:, self._axis :]), 1)
        return self._chunk(actions.view(len(actions), self._spec.horizon, -1), inputs)

    def _choose(self, values: Tensor, *, explore: bool, generator: Generator | None) -> Tensor:
        """-1 to close, 0 to keep, 1 to open: [B, 1]."""
        choice = values.argmax(1)
        if explore:
            other = integers(0, NUM_CHOICES, choice.shape, generator=generator, device=values.device)
            draw = uniform(choice.shape, generator=generator, device=values.device)
            choice = torch.where(draw < self._config.gripper_epsilon, other, choice)
        return (choice - KEEP).float()[:, None]

    def _last_command(self, gripper: Tensor) -> Tensor:
        """The previous command, -1 or 1, [B, 1]. To keep it, it is sent again: not every gripper holds without one."""
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
        """The low-dimensional observation keys."""
        return tuple(key for key in self._spec.observation if key not in (*self._images, EMBODIMENT))

    @property
    def _embeds_state(self) -> bool:
        return bool(self._images and self._state)

    @property
    def num_features(self) -> int:
        if not self._embeds_state:
            return super().num_features
        num_images = sum(self._spec.history.get(key, 1) for key in self._images)
        embodiment = self._spec.observation.get(EMBODIMENT)
        return (
            (embodiment.shape[0] if embodiment else 0)
            + self._config.state_features
            + num_images * self._config.encoder.features
        )

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        if not self._embeds_state:
            return super().features(observations, encoder=encoder)
        encoder = encoder or self._encoder
        by_key = self._features_by_key(observations, encoder)
        # first and unchanged, because the shared policy reads the embodiment from the first features
        embodiment = [by_key[EMBODIMENT]] if EMBODIMENT in by_key else []
        state = torch.cat([by_key[key] for key in self._state], dim=1)
        return torch.cat((*embodiment, encoder["state"](state), *(by_key[key] for key in self._images)), dim=1)

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        axis_mask = self._axis_mask(features)
        if axis_mask is not None:
            axis_mask = axis_mask.repeat(1, self._spec.horizon)
        return sample_tanh_gaussian(*self._distribution(features), generator=generator, axis_mask=axis_mask)

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        mean, _ = self._distribution(features)
        if self._grasp is not None:
            keep = [axis for axis in range(actions.shape[-1]) if axis != self._axis]
            moved, gripped = None, None
            if mask is not None:  # [B] or [B, A]
                by_axis = mask.reshape(len(mean), -1).expand_as(actions)
                moved, gripped = by_axis[:, keep], by_axis[:, self._axis]
            motion = masked_mse(torch.tanh(mean), actions[:, keep], moved)
            return motion + margin_loss(self._grasp(features), actions[:, self._axis] > 0.0, gripped)
        predicted = torch.tanh(mean).view(self._shape(mean))
        return masked_mse(predicted, actions.reshape_as(predicted), mask, self._axis_mask(features))

    def _shape(self, mean: Tensor) -> tuple[int, int, int]:
        """The shape of the chunks of the Gaussian, [B, H, A]."""
        return len(mean), self._spec.horizon, self._num_actions

    def _distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return mean_and_log_std(self._actor(features))
