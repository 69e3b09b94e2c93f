"""The network of ACT (Zhao et al., 2023): a style variable in training, and a transformer from tokens to a chunk.

style   = encode(first token, state, actions)          in training; zeros when acting
tokens  = [style, state, environment, cells of each camera's feature map]
actions = decode(queries, encode(tokens))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dovetail.policies.lerobot.settings import ActConfig
from dovetail.policies.lerobot.transformer import DecoderLayer, Drop, Encoder, EncoderLayer, keep_all

__all__ = ["ActInputs", "ActNetwork", "Style"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActInputs:
    """Sizes of what the network reads. Its features [B, F] are the state, the environment and the flat feature maps."""

    state: int
    environment: int
    maps: tuple[tuple[int, int, int], ...]  # [C, h, w] of each camera

    @property
    def num_features(self) -> int:
        return self.state + self.environment + sum(math.prod(shape) for shape in self.maps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What training needs beside the features: the chunk, which of its actions are known, and noise [B, style_size]."""

    actions: Tensor  # [B, H, A], normalized, finite everywhere
    known: Tensor  # bool [B, H]
    noise: Tensor


class ActNetwork(nn.Module):
    vae_encoder_pos_enc: Tensor

    def __init__(self, config: ActConfig, *, inputs: ActInputs, num_actions: int) -> None:
        super().__init__()
        self._inputs, self._has_style, self._style_size = inputs, config.style, config.style_size
        size = config.hidden
        if config.style:
            self.vae_encoder = _encoder(config, config.num_style_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, size)
            if inputs.state:
                self.vae_encoder_robot_state_input_proj = nn.Linear(inputs.state, size)
            self.vae_encoder_action_input_proj = nn.Linear(num_actions, size)
            self.vae_encoder_latent_output_proj = nn.Linear(size, 2 * config.style_size)
            num_tokens = 1 + bool(inputs.state) + config.horizon
            self.register_buffer("vae_encoder_pos_enc", _positions(num_tokens, size)[None])
        self.encoder = _encoder(config, config.num_encoder_layers)
        self.decoder = _Decoder(config)
        if inputs.state:
            self.encoder_robot_state_input_proj = nn.Linear(inputs.state, size)
        if inputs.environment:
            self.encoder_env_state_input_proj = nn.Linear(inputs.environment, size)
        self.encoder_latent_input_proj = nn.Linear(config.style_size, size)
        if inputs.maps:
            self.encoder_img_feat_input_proj = nn.Conv2d(inputs.maps[0][0], size, 1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + bool(inputs.state) + bool(inputs.environment), size)
        self.decoder_pos_embed = nn.Embedding(config.horizon, size)
        self.action_head = nn.Linear(size, num_actions)
        for parameter in (*self.encoder.parameters(), *self.decoder.parameters()):
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(
        self, features: Tensor, style: Style | None = None, *, drop: Drop = keep_all
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions [B, H, A], and mean and log-variance of the style [B, style_size]; both are 0 without `style`."""
        state, environment, maps = self._split(features)
        mean = log_variance = latent = features.new_zeros(len(features), self._style_size)
        if style is not None and self._has_style:
            mean, log_variance = self._encode_style(state, style, drop)
            latent = mean + (log_variance / 2.0).exp() * style.noise
        tokens = [self.encoder_latent_input_proj(latent)]
        if self._inputs.state:
            tokens.append(self.encoder_robot_state_input_proj(state))
        if self._inputs.environment:
            tokens.append(self.encoder_env_state_input_proj(environment))
        x, position = torch.stack(tokens, dim=1), self.encoder_1d_feature_pos_embed.weight
        for cells in maps:
            x = torch.cat((x, self.encoder_img_feat_input_proj(cells).flatten(2).transpose(1, 2)), dim=1)
            position = torch.cat((position, _map_positions(cells, position.shape[1])))
        seen = self.encoder(x, position=position, drop=drop)
        decoded = self.decoder(
            seen, position=self.decoder_pos_embed.weight, seen_position=position, drop=drop
        )  # [B, H, D]
        return self.action_head(decoded), mean, log_variance

    def _split(self, features: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        inputs = self._inputs
        sizes = [math.prod(shape) for shape in inputs.maps]
        state, environment, *maps = torch.split(features, [inputs.state, inputs.environment, *sizes], dim=1)
        return (
            state,
            environment,
            [cells.view(-1, *shape) for cells, shape in zip(maps, inputs.maps, strict=True)],
        )

    def _encode_style(self, state: Tensor, style: Style, drop: Drop) -> tuple[Tensor, Tensor]:
        num_rows = len(state)
        tokens = [self.vae_encoder_cls_embed.weight.expand(num_rows, 1, -1)]
        if self._inputs.state:
            tokens.append(self.vae_encoder_robot_state_input_proj(state)[:, None])
        num_other = len(tokens)
        tokens.append(self.vae_encoder_action_input_proj(style.actions))
        known = torch.cat((style.known.new_ones(num_rows, num_other), style.known), dim=1)
        encoded = self.vae_encoder(
            torch.cat(tokens, dim=1), position=self.vae_encoder_pos_enc, known=known, drop=drop
        )
        mean, log_variance = self.vae_encoder_latent_output_proj(encoded[:, 0]).chunk(2, dim=1)
        return mean, log_variance


class _Decoder(nn.Module):
    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(
                config.hidden,
                num_heads=config.num_heads,
                feedforward=config.feedforward,
                activation=config.activation,
                pre_norm=config.pre_norm,
            )
            for _ in range(config.num_decoder_layers)
        )
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, seen: Tensor, *, position: Tensor, seen_position: Tensor, drop: Drop) -> Tensor:
        x = seen.new_zeros(len(seen), *position.shape)
        for layer in self.layers:
            x = layer(x, seen, position=position, seen_position=seen_position, drop=drop)
        normed: Tensor = self.norm(x)
        return normed


def _encoder(config: ActConfig, num_layers: int) -> Encoder:
    layers = [
        EncoderLayer(
            config.hidden,
            num_heads=config.num_heads,
            feedforward=config.feedforward,
            activation=config.activation,
            pre_norm=config.pre_norm,
        )
        for _ in range(num_layers)
    ]
    return Encoder(layers, last_norm=config.hidden if config.pre_norm else None)


def _positions(num_tokens: int, size: int) -> Tensor:
    """Sines at even and cosines at odd places, [num_tokens, size]."""
    frequency = 10000.0 ** (-2.0 * (torch.arange(size, dtype=torch.float64) // 2) / size)
    phase = torch.arange(num_tokens, dtype=torch.float64)[:, None] * frequency
    return torch.where(torch.arange(size) % 2 == 0, phase.sin(), phase.cos()).float()


def _map_positions(cells: Tensor, size: int) -> Tensor:
    """Positions of the cells of a feature map [B, C, h, w], [h * w, size]: the row in the first half, then the column. They
    go from 1 / h to 1, times 2 pi."""
    height, width = cells.shape[-2:]
    half = size // 2
    index = torch.arange(half, dtype=torch.float32, device=cells.device)
    frequency = 10000.0 ** (2.0 * (index // 2) / half)

    def waves(count: int) -> Tensor:
        place = torch.arange(1, count + 1, dtype=torch.float32, device=cells.device)
        phase = (place / (count + 1e-6) * (2.0 * math.pi))[:, None] / frequency
        return torch.where(index % 2 == 0, phase.sin(), phase.cos())  # [count, half]

    rows = waves(height)[:, None].expand(-1, width, -1)
    columns = waves(width)[None].expand(height, -1, -1)
    return torch.cat((rows, columns), dim=-1).flatten(0, 1)
