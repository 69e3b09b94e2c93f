"""ACT, action chunking with transformers (Zhao et al., 2023): a whole chunk at once, from state and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.images.resnet import Norm, TorchvisionResNet
from dovetail.policies.lerobot.act_network import ActInputs, ActNetwork, Style
from dovetail.policies.lerobot.policy import LeRobotPolicy, network_config
from dovetail.policies.lerobot.settings import ActConfig
from dovetail.policies.lerobot.transformer import dropout
from dovetail.policies.networks import repeat_last_action
from dovetail.policies.random_draws import normal

__all__ = ["Act", "ActConfig", "style_divergence"]


class Act(LeRobotPolicy):
    """See the Policy and TrainablePolicy contracts.

    Acting is deterministic, because the style is 0. A chunk cannot be guided (rtc): it is not the end of a path that could
    be corrected. Use the chunk mode `soft`, which averages overlapping chunks as the paper's temporal ensembling does.
    """

    Config: ClassVar[type[ActConfig]] = ActConfig
    name: ClassVar[str] = "act"

    def __init__(self, config: ActConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        self._config, folder = network_config(config, policy=self.name)
        super().__init__(config, folder, robot=robot, horizon=self._config.horizon)
        width, cameras = self._config.width, self._inputs.cameras
        self._sizes = ActInputs(
            state=self._inputs.num_state,
            environment=self._inputs.num_environment,
            maps=tuple(TorchvisionResNet.map_shape(*camera.size, channels=width) for camera in cameras),
        )
        num_actions = len(self._inputs.action_order)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = ActNetwork(self._config, inputs=self._sizes, num_actions=num_actions)
            if cameras:
                norm: Norm = "group" if folder is None else "frozen_batch"
                self._encoder["backbone"] = TorchvisionResNet(self._config.resnet, width=width, norm=norm)
        self._start_from_checkpoint()

    # ---- Policy: numpy in, numpy out

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        with torch.inference_mode():
            actions, _, _ = self._actor(self.features(self._tensors(observations)))
        return self._chunk(actions)

    # ---- TrainablePolicy: torch

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self._actor} | ({"encoder": self._encoder} if len(self._encoder) else {})

    @property
    def num_features(self) -> int:
        return self._sizes.num_features

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        """State, environment and flat feature maps [B, F]."""
        encoder = encoder or self._encoder
        parts = [self._vector(vector, observations) for vector in self._inputs.vectors]
        parts += self._maps([self._pixels(camera, observations) for camera in self._inputs.cameras], encoder)
        return torch.cat(parts, dim=1)

    def _maps(self, images: list[Tensor], encoder: nn.ModuleDict) -> list[Tensor]:
        """The flat feature map of each camera. Images of one size go through the network together: faster on a GPU."""
        if not images:
            return []
        if len({image.shape for image in images}) > 1:
            return [encoder["backbone"](image).flatten(1) for image in images]
        maps: Tensor = encoder["backbone"](torch.cat(images))
        return list(maps.flatten(1).chunk(len(images)))

    def imitation_loss(
        self, features: Tensor, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """The mean absolute error of known actions, plus `kl_weight` times the divergence of their chunk's style."""
        config = self._config
        actions = actions.reshape(len(features), config.horizon, -1)
        valid = torch.ones_like(actions, dtype=torch.bool) if mask is None else _by_axis(mask, actions)
        known = valid.any(-1)  # [B, H]
        if mask is not None:
            actions = repeat_last_action(actions, known)
        noise = normal((len(actions), config.style_size), generator=generator, device=actions.device)
        predicted, mean, log_variance = self._actor(
            features,
            Style(actions=actions, known=known, noise=noise),
            drop=dropout(self._config.dropout, generator),
        )
        errors = torch.where(valid, predicted - actions, 0.0).abs().sum(-1) / valid.sum(-1).clamp(min=1)  # [B, H]
        losses = errors + config.kl_weight * style_divergence(mean, log_variance)[:, None]
        return torch.where(known, losses, 0.0).sum() / known.sum().clamp(min=1)


def style_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of N(mean, variance) from N(0, 1), [B, S] -> [B]."""
    return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(-1)


def _by_axis(mask: Tensor, actions: Tensor) -> Tensor:
    """A mask of actions, [B, H], or of their axes, [B, H, A], as [B, H, A]."""
    return mask.reshape(*actions.shape[:2], -1).expand_as(actions)
