"""Diffusion Policy (Chi et al., 2023): a U-Net denoises action chunks, with guidance for real-time chunking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.flows.guidance import Committed, committed_actions, guided_velocity
from dovetail.policies.images.resnet import Norm
from dovetail.policies.lerobot.inputs import VectorInput
from dovetail.policies.lerobot.noise_schedule import NoiseSchedule
from dovetail.policies.lerobot.policy import LeRobotPolicy, network_config
from dovetail.policies.lerobot.settings import DiffusionConfig
from dovetail.policies.lerobot.unet import ConditionalUnet, KeypointEncoder
from dovetail.policies.networks import masked_mse, repeat_last_action
from dovetail.policies.random_draws import integers, normal, seeded_generator
from dovetail.policies.steering import SteeringActor

__all__ = ["Diffusion", "DiffusionConfig"]

_FIXED_SEED = 0  # for deterministic_noise=fixed


class Diffusion(LeRobotPolicy):
    """See the Policy and TrainablePolicy contracts.

    The network's actions begin at the first observation of the history in a checkpoint, as LeRobot trains it, and at the
    current one in a new policy. Actions before the current step are computed and not used.

    A deterministic chunk has the same noise in all rows (`deterministic_noise`).
    """

    Config: ClassVar[type[DiffusionConfig]] = DiffusionConfig
    name: ClassVar[str] = "diffusion"

    def __init__(self, config: DiffusionConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config, folder = network_config(config, policy=self.name)
        network = self._config
        self._num_past = 0 if folder is None else network.num_observations - 1
        super().__init__(
            config,
            folder,
            robot=robot,
            horizon=network.horizon - self._num_past,
            num_observations=network.num_observations,
            guidable=True,
        )
        self._trajectory = (network.horizon, len(self._inputs.action_order))
        norm: Norm = "group" if folder is None or folder.uses_group_norm else "frozen_batch"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = ConditionalUnet(network, num_actions=self._trajectory[1], num_features=self.num_features)
            encoders = [
                KeypointEncoder(network, image=camera.size, norm=norm)
                for camera in self._inputs.cameras[: None if network.separate_encoders else 1]
            ]
        if encoders:
            self._encoder["rgb_encoder"] = nn.ModuleList(encoders) if network.separate_encoders else encoders[0]
        self._noise_schedule = NoiseSchedule(
            schedule=network.schedule,
            beta_range=network.beta_range,
            num_train_steps=network.num_train_steps,
            num_steps=network.num_denoising_steps or network.num_train_steps,
            stochastic=network.scheduler != "ddim",
            prediction=network.prediction,
            clip=network.clip_sample,
        )
        self._start_from_checkpoint()
        self.steering = self._make_steering(seed)  # no folder has one

    def _make_steering(self, seed: int) -> SteeringActor | None:
        config = self._config.steering
        if config is None:
            return None
        if self._noise_schedule.is_stochastic:
            raise UsageError(
                "policy.steering chooses the noise at the start, but this diffusion adds more in each step. Set "
                "policy.scheduler=ddim"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SteeringActor(
                num_features=self.num_features,
                num_noise=self.num_noise,
                hidden=config.hidden,
                max_noise=config.max_noise,
            )

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        """A chunk for each row. With a prefix, the chunk continues it; NaN actions of the prefix are unknown."""
        # no inference_mode, because guidance needs derivatives
        with torch.inference_mode(False), torch.no_grad():
            features = self.features(self._tensors(observations))
            committed = committed_actions(
                context,
                shape=(len(features), self._spec.horizon, self._trajectory[1]),
                normalize=self.normalize_actions,
                schedule=self._config.guidance.schedule,
                device=self._device,
            )
            trajectory = self._denoise(features, context, committed)
        return self._chunk(trajectory[:, self._num_past :])

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        found: dict[str, nn.Module] = {"actor": self._actor}
        if len(self._encoder):
            found["encoder"] = self._encoder
        if self.steering is not None:
            found["steering"] = self.steering
        return found

    @property
    def num_features(self) -> int:
        inputs, config = self._inputs, self._config
        images = 2 * config.num_keypoints * len(inputs.cameras)
        return (inputs.num_state + inputs.num_environment + images) * config.num_observations

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        """State, keypoints and environment of each observed step, [B, F]."""
        inputs, num_steps = self._inputs, self._config.num_observations

        def steps(vector: VectorInput) -> Tensor:
            values = self._vector(vector, observations)
            return values if num_steps > 1 else values[:, None]

        keypoints = self._keypoints(observations, encoder or self._encoder)
        parts = [*map(steps, inputs.state), *keypoints, *map(steps, inputs.environment)]
        return torch.cat(parts, dim=-1).flatten(1)

    def _keypoints(self, observations: Mapping[str, Tensor], encoder: nn.ModuleDict) -> list[Tensor]:
        """[B, n, 2 * num_keypoints] of each camera."""
        found = []
        for index, camera in enumerate(self._inputs.cameras):
            network = encoder["rgb_encoder"]
            if isinstance(network, nn.ModuleList):
                network = network[index]
            keypoints: Tensor = network(self._pixels(camera, observations))
            found.append(keypoints.view(-1, self._config.num_observations, keypoints.shape[1]))
        return found

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """The mean squared error of the predicted noise (or of the clean actions) over known actions."""
        actions = actions.reshape(len(features), self._spec.horizon, -1)
        if mask is not None:
            mask = mask.reshape(*actions.shape[:2], -1)  # [B, H, 1], or of each axis
            actions = repeat_last_action(actions, mask.any(-1))
        if self._num_past:  # not in the batch; the network expects some, so they repeat the first action
            actions = _with_past(actions, self._num_past)
            mask = None if mask is None else _with_past(mask, self._num_past)
        schedule, device = self._noise_schedule, actions.device
        noise = normal(actions.shape, generator=generator, device=device)
        levels = integers(0, schedule.num_train_steps, (len(actions),), generator=generator, device=device)
        predicted = self._actor(schedule.add_noise(actions, noise, levels), levels, features)
        return masked_mse(predicted, schedule.target(actions, noise), mask)

    # ---- Steerable

    steering: SteeringActor | None = None

    @property
    def num_noise(self) -> int:
        num_steps, num_actions = self._trajectory
        return num_actions * (
            1 if self._config.steering is not None and self._config.steering.repeat else num_steps
        )

    def steering_inputs(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = self.features(observations)
        return features, features

    def chunks_from_noise(self, inputs: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            x = self._whole_noise(noise)
            for level in self._noise_schedule.levels:
                x = self._noise_schedule.step(self._clean(x, level, inputs, None), x, level, None)
        return x[:, self._num_past :]

    def _whole_noise(self, noise: Tensor) -> Tensor:
        """Noise [B, N] of the steering actor as that of a trajectory, [B, T, A]."""
        num_steps, num_actions = self._trajectory
        return noise.view(len(noise), -1, num_actions).expand(-1, num_steps, -1)

    # ---- from noise to actions

    def _denoise(self, features: Tensor, context: ActContext, committed: Committed | None) -> Tensor:
        """The trajectory [B, T, A], normalized."""
        schedule = self._noise_schedule
        generator = seeded_generator(context.seed)
        if context.deterministic and (generator is None or self._config.deterministic_noise == "fixed"):
            generator = seeded_generator(_FIXED_SEED)

        def noise() -> Tensor:
            num_rows = 1 if context.deterministic else len(features)
            drawn = normal((num_rows, *self._trajectory), generator=generator, device=features.device)
            return drawn.expand(len(features), -1, -1)

        x = noise()
        if self.steering is not None and self.steering.engaged:
            x = self._whole_noise(
                self.steering.most_likely(features)
                if context.deterministic
                else self.steering.sample(features, generator=seeded_generator(context.seed))[0]
            )
        for level in schedule.levels:
            clean = self._clean(x, level, features, committed)
            x = schedule.step(clean, x, level, noise() if schedule.is_stochastic else None)
        return x

    def _clean(self, x: Tensor, level: int, features: Tensor, committed: Committed | None) -> Tensor:
        """The clean actions that the network sees in x, corrected towards the committed ones.

        Guidance is the flow's (Black et al., 2025), because both come from the same rule (Song et al., 2023, pseudoinverse
        guidance): x / (sqrt(a) + sqrt(1 - a)) is a flow's point at the time sqrt(a) / (sqrt(a) + sqrt(1 - a)), and the clean
        actions are its end.

        The error is that of the clipped prediction, and the guided actions are clipped again: where x is almost only noise,
        a prediction is far out of range, and its error would drive the whole chunk away.
        """
        levels = torch.full((len(x),), level, device=x.device)

        def clean(x: Tensor) -> Tensor:
            return self._noise_schedule.clean(self._actor(x, levels, features), x, level)

        def clipped(x: Tensor) -> Tensor:  # its derivative is that of the prediction
            predicted = clean(x)
            return predicted + (self._noise_schedule.clip(predicted) - predicted).detach()

        if committed is None:
            return clean(x)
        scale, time = self._noise_schedule.flow_time(level)
        guidance, past = self._config.guidance, (0, 0, self._num_past, 0)
        velocity = guided_velocity(
            lambda point, t: (clipped(point * scale) - point) / (1.0 - t),
            x / scale,
            time,
            target=nn.functional.pad(committed.target, past),
            weights=nn.functional.pad(committed.weights, past[2:]),
            beta=guidance.beta,
            jacobian=guidance.jacobian,
        )
        return self._noise_schedule.clip(x / scale + (1.0 - time) * velocity)


def _with_past(values: Tensor, num_past: int) -> Tensor:
    """[B, H, ...] after `num_past` repetitions of its first value."""
    return torch.cat((values[:, :1].expand(-1, num_past, -1), values), dim=1)
