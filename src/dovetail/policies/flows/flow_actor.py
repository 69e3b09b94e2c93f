"""A flow of few steps over single actions, with a density: the actor of SAC-Flow, from low-dimensional observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.random_draws import normal, uniform
from dovetail.policies.networks import masked_mse, mlp
from dovetail.policies.components import NetworkPolicyConfig
from dovetail.policies.tanh_gaussian import log_tanh_derivative, soft_clamp
from dovetail.policies.flows.noisy_flow import GatedVelocity, TransformerVelocity, noisy_path

__all__ = ["FlowActor", "FlowActorConfig"]

_VELOCITIES = {"gated": GatedVelocity, "transformer": TransformerVelocity}
_LARGEST = 0.97  # of what is cloned: tanh reaches 1 nowhere


class FlowActorConfig(NetworkPolicyConfig):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at; none: every low-dimensional one the robot gives."""
    history: dict[str, int] = Field(default_factory=dict)
    """Control ticks of history per key; a key not named is seen once."""
    velocity: Literal["gated", "transformer"] = "gated"
    """Flow-G, the cheaper one, or Flow-T."""
    hidden: int = Field(default=128, ge=4, multiple_of=4)
    num_layers: int = Field(default=2, ge=1)
    num_flow_steps: int = Field(default=4, ge=1)
    """Steps from noise to action, each with noise of its own. Choose before training."""
    sigma: tuple[float, float] = (0.05, 0.8)
    """Least and most noise on the way, which is learned in between. The action's own share of it is sigma / sqrt(steps),
    before tanh."""

    @model_validator(mode="after")
    def _some_noise(self) -> Self:
        if not 0.0 < self.sigma[0] < self.sigma[1]:
            raise ValueError(f"sigma should be two numbers above 0, the smaller one first, got {self.sigma}")
        return self


class FlowActor(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts.

    An action is at the end of a path with noise, whose density stands for the action's own, which nobody can compute. A
    deterministic one takes the path on which all noise is 0, the middle of the others, drift and all: what was learned
    from rewards is these paths' ends, and the velocity is that of a true flow only as far as it was cloned.

    How much noise there is on the way, sigma, is learned from what was seen. Were it fixed, each step's part of the
    log-density would be the same number whatever the networks do: its gradient would be 0 but for tanh's, and the
    temperature would have nothing to hold on to. It is the same at all steps of a path: with one for each, the early
    ones go to their limit, for their noise counts as entropy and the later steps take it away again. And it does not
    depend on x, or the drift that keeps the flow's marginals would be another.
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
            nn.init.zeros_(parameter)  # in the middle, wherever the robot is

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.no_grad():
            path, _, _ = self._walk(observations, context)
        return self._chunk(torch.tanh(path[-1])[:, None])

    def _walk(self, observations: Mapping[str, Array], context: ActContext) -> tuple[list[Tensor], Tensor, Tensor]:
        """The path that was taken, its log-density, and the features that it was taken for."""
        # copies: views are read-only
        features = self.features(
            {key: torch.tensor(value, device=self._device) for key, value in observations.items()}
        )
        generator = None if context.seed is None else torch.Generator().manual_seed(context.seed)
        noise = features.new_zeros(self._noise_shape(features))
        if not context.deterministic:
            noise = self._randn(features, self._noise_shape(features), generator)
        return *self._path(features, noise), features

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"velocity": self._velocity, "sigma": self._sigma}

    @property
    def num_flow_steps(self) -> int:
        return self._config.num_flow_steps

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Actions [B, A] at the end of noisy paths, and the log-density [B] of path and action."""
        noise = normal(self._noise_shape(features), generator=generator, device=features.device, rows=1)
        path, log_density = self._path(features, noise)
        return torch.tanh(path[-1]), log_density - log_tanh_derivative(path[-1]).sum(-1)

    def sigma(self, features: Tensor) -> Tensor:
        """The noise on the way, [B, A]."""
        low, high = (math.log(value) for value in self._config.sigma)
        return soft_clamp(self._sigma(features), low, high).exp()

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Flow matching, where tanh has not squashed anything yet."""
        ends = torch.atanh(actions.reshape(-1, self._num_actions).clamp(-_LARGEST, _LARGEST))
        if mask is not None:
            ends = torch.where(mask.reshape(-1, 1), ends, 0.0)
        noise = normal(ends.shape, generator=generator, device=ends.device)
        # not up to 1: the loss counts an error in the end of the way by 1 / (1 - t)^2
        t = uniform((len(ends),), generator=generator, device=ends.device) * (1.0 - 0.5 / self.num_flow_steps)
        x = torch.lerp(noise, ends, t[:, None])
        there = None if mask is None else mask.reshape(-1)
        real = self._real(features)
        return masked_mse(self._velocity(x, features, t, real), ends - noise, there, real)

    def _noise_shape(self, features: Tensor) -> tuple[int, int, int]:
        """Of where a path starts, and of what comes on top at each step."""
        return 1 + self.num_flow_steps, len(features), self._num_actions

    def _path(self, features: Tensor, noise: Tensor) -> tuple[list[Tensor], Tensor]:
        noise = noise.to(features.dtype)
        real = self._real(features)
        return noisy_path(self._flow(features), noise[0], sigma=self.sigma(features), noise=noise[1:], real=real)

    def _flow(self, features: Tensor) -> Callable[[Tensor, float], Tensor]:
        """The velocity at a place and a time, given what was seen."""
        real = self._real(features)

        def velocity(x: Tensor, t: float) -> Tensor:
            v: Tensor = self._velocity(x, features, x.new_full((len(x),), t), real)
            return v

        return velocity
