"""Flow matching over action chunks, from low-dimensional observations and images, with guidance for real-time chunking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.flows.guidance import Committed, committed_actions, guided_velocity
from dovetail.policies.networks import DenoisingMLP, PromptEncoder, masked_mse, repeat_last_action
from dovetail.policies.random_draws import normal, seeded_generator, uniform
from dovetail.policies.relative_targets import RelativeTargets
from dovetail.policies.settings import FlowConfig
from dovetail.policies.trainable import ADVANTAGE

__all__ = ["Flow", "FlowConfig"]

_FIXED_SEED = 0  # for deterministic_noise=fixed
_NUM_ADVANTAGE = 2  # last features: 1 where the advantage is positive, 1 where it is negative


class Flow(NetworkPolicy):
    """See the Policy and TrainablePolicy contracts.

    With x_t = (1 - t) noise + t actions, it learns the velocity `actions - noise`. Acting integrates the velocity from
    noise at t = 0 to a chunk at t = 1. The network predicts the end x_1, and the velocity is (x_1 - x_t) / (1 - t): the
    loss is the same, but the network does not have to reproduce its noise and learns faster.

    A deterministic chunk starts from one noise for all rows (`deterministic_noise`). Starting from zeros would average
    the modes of the demonstrations.
    """

    Config: ClassVar[type[FlowConfig]] = FlowConfig
    name: ClassVar[str] = "flow"
    replaceable: ClassVar[frozenset[str]] = frozenset({"actor"})

    def __init__(self, config: FlowConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config = config
        spec = policy_spec(
            self.name,
            robot,
            inputs=config.inputs,
            history=config.history,
            images=True,
            horizon=config.horizon,
            guidable=True,
            prompted=config.prompt_features > 0,
        )
        relative = RelativeTargets.of(config.relative_parts, robot, spec) if config.relative_parts else None
        super().__init__(spec, config.components, encoder=config.encoder, relative=relative)
        self._chunk_shape = (config.horizon, robot.action.shape[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = {
                "horizon": config.horizon,
                "num_actions": robot.action.shape[0],
                "num_features": self.num_features,
            }
            self._actor = self._network(
                "actor",
                lambda: DenoisingMLP(**sizes, hidden=config.hidden, num_layers=config.num_layers),
                **sizes,
            )
            # until it is trained, the indicator changes nothing
            if config.advantage_input and isinstance(self._actor, DenoisingMLP):
                first = self._actor.condition[0]
                assert isinstance(first, nn.Linear)
                nn.init.zeros_(first.weight[:, self.num_features - _NUM_ADVANTAGE : self.num_features])
            self._make_image_encoders()
            if config.prompt_features:
                self._encoder["prompt"] = PromptEncoder(num_features=config.prompt_features)

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        """A chunk for each row. With a prefix, the chunk continues it; NaN actions of the prefix are unknown."""
        # no inference_mode, because guidance needs derivatives
        with torch.inference_mode(False), torch.no_grad():
            inputs = self._tensors(observations)
            features = self.features(inputs)
            committed = self._committed(len(features), inputs, context)
            normalized = self._integrate(features, self._noise(features, context), committed)
        return self._chunk(normalized.clamp(-1.0, 1.0), inputs)

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor} | ({"encoder": self._encoder} if len(self._encoder) else {})

    @property
    def num_features(self) -> int:
        num_advantage = _NUM_ADVANTAGE if self._config.advantage_input else 0
        return super().num_features + self._config.prompt_features + num_advantage

    @property
    def takes_advantage(self) -> bool:
        """See AdvantageConditioned."""
        return self._config.advantage_input

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        encoder = encoder or self._encoder
        parts = [super().features(observations, encoder=encoder)]
        if self._spec.prompted:
            parts.append(encoder["prompt"](observations["prompt"]))
        if self._config.advantage_input:
            indicator = observations.get(ADVANTAGE, torch.zeros(len(parts[0]), device=parts[0].device))
            parts.append(torch.stack((indicator > 0, indicator < 0), dim=1).to(parts[0].dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    # ---- HasEmbeddings: the features of the flow are its only embedding

    @property
    def embedding_width(self) -> int:
        return self.num_features

    def embeddings(self, observations: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        features = self.features(self._tensors(observations))
        return features[:, None], torch.ones(len(features), 1, dtype=torch.bool, device=features.device)

    # ----

    def sample(self, features: Tensor, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        raise UsageError(
            f"policy '{self.name}' cannot compute the density of its actions, which this algorithm needs. Train it with "
            "algorithm 'imitation', or use policy 'flow_actor'"
        )

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        actions = actions.reshape(-1, *self._chunk_shape)
        if mask is not None:
            exists = mask.reshape(*actions.shape[:2], -1).any(-1)
            actions = repeat_last_action(actions, exists)
        noise = normal(actions.shape, generator=generator, device=actions.device)
        # up to half a step after the last time that acting uses: an error in x_1 counts by 1 / (1 - t)^2, so later times
        # would dominate the loss
        t = uniform((len(actions),), generator=generator, device=actions.device) * (
            1.0 - 0.5 / self._config.num_flow_steps
        )
        x = torch.lerp(noise, actions, t[:, None, None])
        return masked_mse(self._velocity(x, features, t), actions - noise, mask, self._axis_mask(features))

    # ---- from noise to actions

    def _velocity(self, x: Tensor, features: Tensor, t: Tensor) -> Tensor:
        axis_mask = self._axis_mask(features)
        if axis_mask is not None:  # axes that the arm does not have stay 0
            axis_mask = axis_mask[:, None]
            x = torch.where(axis_mask, x, 0.0)
        end: Tensor = self._actor(x, features, t)
        velocity = (end - x) / (1.0 - t)[:, None, None]
        return velocity if axis_mask is None else torch.where(axis_mask, velocity, 0.0)

    def _noise(self, features: Tensor, context: ActContext) -> Tensor:
        generator = seeded_generator(context.seed)
        if context.deterministic:
            if generator is None or self._config.deterministic_noise == "fixed":
                generator = seeded_generator(_FIXED_SEED)
            return self._randn(features, (1, *self._chunk_shape), generator).expand(len(features), -1, -1)
        return self._randn(features, (len(features), *self._chunk_shape), generator)

    def _committed(self, num_rows: int, inputs: Mapping[str, Tensor], context: ActContext) -> Committed | None:
        return committed_actions(
            context,
            shape=(num_rows, *self._chunk_shape),
            normalize=lambda actions: self.normalize_actions(actions, inputs),
            schedule=self._config.guidance.schedule,
            device=self._device,
        )

    def _acting_velocity(self, features: Tensor, x: Tensor, t: float) -> Tensor:
        """The velocity for a positive advantage, with classifier-free guidance. Real-time chunking differentiates it."""
        if not self._config.advantage_input:
            return self._velocity(x, features, x.new_full((len(x),), t))
        positive = features.clone()
        positive[:, -_NUM_ADVANTAGE:] = positive.new_tensor((1.0, 0.0))
        weight = self._config.advantage_guidance
        if weight == 1.0:
            return self._velocity(x, positive, x.new_full((len(x),), t))
        both = torch.cat((features, positive))  # `act` gives features without an indicator
        v_none, v_positive = self._velocity(torch.cat((x, x)), both, x.new_full((2 * len(x),), t)).chunk(2)
        return v_none + weight * (v_positive - v_none)

    def _integrate(self, features: Tensor, x: Tensor, committed: Committed | None) -> Tensor:
        def velocity(x: Tensor, t: float) -> Tensor:
            return self._acting_velocity(features, x, t)

        num_steps, guidance = self._config.num_flow_steps, self._config.guidance
        for step in range(num_steps):
            t = step / num_steps
            if committed is None:
                v = velocity(x, t)
            else:
                v = guided_velocity(
                    velocity,
                    x,
                    t,
                    target=committed.target,
                    weights=committed.weights,
                    beta=guidance.beta,
                    jacobian=guidance.jacobian,
                )
            x = x + v / num_steps
        return x
