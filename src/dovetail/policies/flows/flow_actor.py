"""The actor of SAC-Flow: a flow with few noisy steps over single actions, which has a density. No images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.flows.noisy_flow import GatedVelocity, TransformerVelocity
from dovetail.policies.flows.noisy_path import PathVelocity, StepNoise, noisy_path, sde_steps
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.random_draws import normal, seeded_generator, uniform
from dovetail.policies.settings import FlowActorConfig
from dovetail.policies.tanh_gaussian import log_tanh_derivative, soft_clamp

__all__ = ["FlowActor", "FlowActorConfig"]

_VELOCITIES = {"gated": GatedVelocity, "transformer": TransformerVelocity}
_MAX_ACTION = 0.97  # for cloning, because tanh never reaches 1


class FlowActor(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts.

    An action is the end of a noisy path. The density of the path replaces the density of the action, which cannot be
    computed. A deterministic action follows the path without noise, including the drift term: rewards train the ends of
    these paths.

    The noise sigma is a function of the features:
    - It is learned. With a fixed sigma, the log-density of each step would be constant, and the temperature would have
      almost no gradient to act on.
    - It is the same for all steps of a path. With one sigma per step, early steps go to the upper limit, because their
      noise counts as entropy and later steps remove it again.
    - It does not depend on x, because that would change the drift that preserves the marginals of the flow.
    """

    Config: ClassVar[type[FlowActorConfig]] = FlowActorConfig
    name: ClassVar[str] = "flow_actor"

    def __init__(self, config: FlowActorConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        spec = policy_spec(self.name, robot, inputs=config.inputs, history=config.history)
        super().__init__(spec, config.components)
        self._config = config
        self._num_actions = robot.action.shape[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._velocity = _VELOCITIES[config.velocity](
                num_features=self.num_features,
                num_actions=self._num_actions,
                hidden=config.hidden,
                num_layers=config.num_layers,
            )
            self._sigma = mlp((self.num_features, config.hidden, self._num_actions))
        for parameter in self._sigma[-1].parameters():
            nn.init.zeros_(parameter)  # sigma starts in the middle of its range for all observations

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            path, _, _ = self._sample_path(observations, context)
        return self._chunk(torch.tanh(path[-1])[:, None])

    def _sample_path(
        self, observations: Mapping[str, Array], context: ActContext
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """A path, its log-density and the features."""
        features = self.features(self._tensors(observations))
        noise = features.new_zeros(self._noise_shape(features))
        if not context.deterministic:
            noise = self._randn(features, self._noise_shape(features), seeded_generator(context.seed))
        return *self._path(features, noise), features

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"velocity": self._velocity, "sigma": self._sigma}

    @property
    def num_flow_steps(self) -> int:
        return self._config.num_flow_steps

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Actions [B, A] at the ends of noisy paths, and the log-density [B] of path and action."""
        noise = normal(self._noise_shape(features), generator=generator, device=features.device, rows=1)
        path, log_density = self._path(features, noise)
        return torch.tanh(path[-1]), log_density - log_tanh_derivative(path[-1]).sum(-1)

    def sigma(self, features: Tensor) -> Tensor:
        """The noise of each step, [B, A]."""
        low, high = (math.log(value) for value in self._config.sigma_range)
        return soft_clamp(self._sigma(features), low, high).exp()

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """Flow matching on the actions before tanh."""
        ends = torch.atanh(actions.reshape(-1, self._num_actions).clamp(-_MAX_ACTION, _MAX_ACTION))
        if mask is not None:
            mask = mask.reshape(len(ends), -1)
            ends = torch.where(mask, ends, 0.0)
        noise = normal(ends.shape, generator=generator, device=ends.device)
        # not up to 1, because an error in the end counts by 1 / (1 - t)^2
        t = uniform((len(ends),), generator=generator, device=ends.device) * (1.0 - 0.5 / self.num_flow_steps)
        x = torch.lerp(noise, ends, t[:, None])
        axis_mask = self._axis_mask(features)
        predicted = self._velocity(x, features, t, axis_mask)
        return masked_mse(predicted, ends - noise, mask, axis_mask)

    def _noise_shape(self, features: Tensor) -> tuple[int, int, int]:
        """The start of a path and the noise of each step."""
        return 1 + self.num_flow_steps, len(features), self._num_actions

    def _path(self, features: Tensor, noise: Tensor) -> tuple[list[Tensor], Tensor]:
        noise, axis_mask = noise.to(features.dtype), self._axis_mask(features)
        return noisy_path(self._flow(features), self._steps(features), noise[0], noise[1:], axis_mask)

    def _steps(self, features: Tensor) -> StepNoise:
        sigma = self.sigma(features)
        return sde_steps(lambda _: sigma, dt=1.0 / self.num_flow_steps)

    def _flow(self, features: Tensor) -> PathVelocity:
        """The velocity as a function of x and t, for these features."""
        axis_mask = self._axis_mask(features)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            v: Tensor = self._velocity(x, features, t, axis_mask)
            return v

        return velocity
