"""Flow matching over action chunks, from low-dimensional observations and images; guided by what was committed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.random_draws import normal, uniform
from dovetail.policies.images.encoders import EncoderConfig
from dovetail.policies.flows.guidance import GuidanceConfig, guided_velocity, prefix_weights
from dovetail.policies.networks import DenoisingMLP, PromptEncoder, repeat_last_action, masked_mse
from dovetail.policies.components import NetworkPolicyConfig

__all__ = ["Flow", "FlowConfig"]

_CALM_SEED = 0  # of the noise that every fixed deterministic chunk starts from


class FlowConfig(NetworkPolicyConfig):
    inputs: tuple[str, ...] = ()
    """Observation keys to look at, images among them; none: every low-dimensional one the robot gives."""
    history: dict[str, int] = Field(default_factory=dict)
    """Control ticks of history per key; a key not named is seen once."""
    horizon: int = Field(default=16, ge=1)
    """Actions in a chunk."""
    num_flow_steps: int = Field(default=5, ge=1)
    """Euler steps from noise to actions. Times beyond the last of them are not learned: choose before training."""
    hidden: int = Field(default=128, ge=1)
    num_layers: int = Field(default=3, ge=1)
    encoder: EncoderConfig = EncoderConfig(features=64)
    """How images are looked at."""
    prompt_features: int = Field(default=0, ge=0)
    """What is kept of the task in words, for a policy of several tasks; 0: it is not told."""
    calm_noise: Literal["fixed", "seeded"] = "fixed"
    """What a deterministic chunk starts from: one noise for all, or its seed's. From a fixed one every chunk deviates
    in the same direction, so a policy of varied demonstrations may never arrive."""
    guidance: GuidanceConfig = Field(default_factory=GuidanceConfig)


class Flow(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts.

    With x_t = (1 - t) noise + t actions, it learns the velocity actions - noise, and acting follows that from noise at
    t = 0 to a chunk at t = 1. The network names the end of the way, and the velocity is what leads there in the time
    that is left: the same loss, but the network need not learn to repeat its noise, and learns faster.

    A deterministic chunk starts from one noise (`calm_noise`), the same for every row: from no noise at all it would
    end between two ways of doing a thing, where nobody ever went.
    """

    Config: ClassVar[type[FlowConfig]] = FlowConfig
    name: ClassVar[str] = "flow"

    def __init__(self, config: FlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config = config
        super().__init__(
            policy_spec(
                self.name,
                robot,
                inputs=config.inputs,
                history=config.history,
                images=True,
                horizon=config.horizon,
                guidable=True,
                prompted=config.prompt_features > 0,
            ),
            config.components,
            encoder=config.encoder,
        )
        self._chunk_shape = (config.horizon, robot.action.shape[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = DenoisingMLP(
                horizon=config.horizon,
                num_actions=robot.action.shape[0],
                num_features=self.num_features,
                hidden=config.hidden,
                num_layers=config.num_layers,
            )
            self._open_eyes()
            if config.prompt_features:
                self._encoder["prompt"] = PromptEncoder(num_features=config.prompt_features)

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        """A chunk for each row; with a prefix, one that goes on from it. What of a prefix is unknown lies beyond its
        end or is NaN, and pulls nowhere."""
        # no inference_mode, whoever asks: guidance needs a derivative
        with torch.inference_mode(False), torch.no_grad():
            # copies: views are read-only
            inputs = {key: torch.tensor(value, device=self._device) for key, value in observations.items()}
            features = self.features(inputs)
            normalized = self._integrate(
                features, self._noise(features, context), self._committed(len(features), context)
            )
        return self._chunk(normalized.clamp(-1.0, 1.0))

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor} | ({"encoder": self._encoder} if len(self._encoder) else {})

    @property
    def num_features(self) -> int:
        return super().num_features + self._config.prompt_features

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        encoder = encoder or self._encoder
        features = super().features(observations, encoder=encoder)
        if not self._spec.prompted:
            return features
        return torch.cat((features, encoder["prompt"](observations["prompt"])), dim=1)

    def sample(self, features: Tensor, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        raise UsageError(
            f"policy '{self.name}' knows no density of its actions, which this algorithm asks for: train it with "
            "'imitation', or use policy 'flow_actor'"
        )

    def imitation_loss(
        self,
        features: Tensor,
        actions: Tensor,
        mask: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        actions = actions.reshape(-1, *self._chunk_shape)
        if mask is not None:
            mask = mask.view(actions.shape[:2])
            actions = repeat_last_action(actions, mask)
        # where nothing is real, `_velocity` does not look
        noise = normal(actions.shape, generator=generator, device=actions.device)
        # half a step beyond the last time that acting asks about: the loss counts an error in the end of the way by
        # 1 / (1 - t)^2, so later times would drown all the others
        t = uniform((len(actions),), generator=generator, device=actions.device) * (
            1.0 - 0.5 / self._config.num_flow_steps
        )
        x = torch.lerp(noise, actions, t[:, None, None])
        return masked_mse(self._velocity(x, features, t), actions - noise, mask, self._real(features))

    # ---- from noise to actions

    def _velocity(self, x: Tensor, features: Tensor, t: Tensor) -> Tensor:
        real = self._real(features)
        if real is not None:  # what an arm has not is 0 from here to the end, whatever else is pulled
            real = real[:, None]
            x = torch.where(real, x, 0.0)
        end: Tensor = self._actor(x, features, t)
        velocity = (end - x) / (1.0 - t)[:, None, None]
        return velocity if real is None else torch.where(real, velocity, 0.0)

    def _noise(self, features: Tensor, context: ActContext) -> Tensor:
        generator = None if context.seed is None else torch.Generator().manual_seed(context.seed)
        if context.deterministic:
            seeded = generator is not None and self._config.calm_noise == "seeded"
            if not seeded:
                generator = torch.Generator().manual_seed(_CALM_SEED)
            return self._randn(features, (1, *self._chunk_shape), generator).expand(len(features), -1, -1)
        return self._randn(features, (len(features), *self._chunk_shape), generator)

    def _committed(self, num_rows: int, context: ActContext) -> tuple[Tensor, Tensor] | None:
        """What the robot has committed to, normalised [B, H, A], and how much it counts [B, H]."""
        if context.prefix is None:
            return None
        horizon, num_actions = self._chunk_shape
        prefix = torch.tensor(context.prefix, dtype=torch.float32, device=self._device)
        if prefix.ndim != 3 or prefix.shape[0] != num_rows or prefix.shape[2] != num_actions:
            raise UsageError(f"a prefix should be [{num_rows}, H, {num_actions}], got {list(prefix.shape)}")
        prefix = prefix[:, :horizon]
        missing = prefix.new_full((num_rows, horizon - prefix.shape[1], num_actions), math.nan)
        target = self.normalize_actions(torch.cat((prefix, missing), dim=1))
        weights = prefix_weights(
            self._config.guidance.schedule,
            delay=context.delay,
            execution_horizon=context.horizon,
            chunk_length=horizon,
        )
        return target, weights.to(target.device) * target.isfinite().all(-1)

    def _integrate(self, features: Tensor, x: Tensor, committed: tuple[Tensor, Tensor] | None) -> Tensor:
        def velocity(x: Tensor, t: float) -> Tensor:
            return self._velocity(x, features, x.new_full((len(x),), t))

        num_steps, guidance = self._config.num_flow_steps, self._config.guidance
        for step in range(num_steps):
            t = step / num_steps
            if committed is None:
                v = velocity(x, t)
            else:
                target, weights = committed
                v = guided_velocity(
                    velocity, x, t, target=target, weights=weights, beta=guidance.beta, jacobian=guidance.jacobian
                )
            x = x + v / num_steps
        return x
