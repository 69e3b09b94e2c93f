"""The networks of RLT: a token that sums up a frozen policy's embeddings, and a small actor of chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.networks import mlp

__all__ = ["ChunkActor", "RlToken", "pool_embeddings"]

_NUM_HEADS = 4


def pool_embeddings(embeddings: Tensor, mask: Tensor, *, num_groups: int) -> Tensor:
    """The means [B, M, W] of M groups of neighbors among embeddings [B, P, W], float32. Embeddings where `mask` [B, P] is
    false do not count; a group without any is 0."""
    num = embeddings.shape[1]
    group = torch.arange(num, device=embeddings.device) * num_groups // num
    member = functional.one_hot(group, num_groups).float()  # [P, M]
    valid = mask.float()
    totals = torch.einsum("bpw,bp,pm->bmw", embeddings.float().nan_to_num(), valid, member)
    return totals / (valid @ member).clamp(min=1.0)[..., None]


class RlToken(nn.Module):
    """An encoder-decoder with one bottleneck: embeddings [B, M, W] -> token z [B, Z] -> embeddings.

    The encoder is a transformer over the embeddings and one learned query, whose output is the token. The decoder sees
    nothing but the token.
    """

    def __init__(
        self,
        *,
        num_embeddings: int,
        embedding_width: int,
        size: int,
        width: int,
        num_layers: int,
        decoder_hidden: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.project = nn.Linear(embedding_width, width)
        self.positions = nn.Parameter(torch.zeros(num_embeddings, width).normal_(0.0, 0.02))
        self.query = nn.Parameter(torch.zeros(1, 1, width).normal_(0.0, 0.02))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, _NUM_HEADS, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_layers)
        )
        self.token = nn.Linear(width, size)
        num_values = num_embeddings * embedding_width
        self.decoder = mlp((size, *decoder_hidden, num_values)) if decoder_hidden else nn.Linear(size, num_values)

    def forward(self, embeddings: Tensor) -> Tensor:
        """The token z [B, Z]."""
        x = self.project(embeddings) + self.positions
        x = torch.cat((self.query.expand(len(x), -1, -1), x), 1)
        for layer in self.layers:
            x = layer(x)
        z: Tensor = self.token(x[:, 0])
        return z

    def loss(self, embeddings: Tensor) -> Tensor:
        """The mean squared error of the embeddings that the token brings back."""
        rebuilt: Tensor = self.decoder(self(embeddings))
        return (rebuilt - embeddings.flatten(1)).square().mean()


class ChunkActor(nn.Module):
    """Token, proprioception and proposal [B, F] to a normalized chunk [B, K * A]. The policy acts as its base until the
    algorithm sets `engaged`."""

    engaged: Tensor

    def __init__(self, *, num_features: int, num_outputs: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((num_features, *hidden, num_outputs))
        self.register_buffer("engaged", torch.zeros(1))  # a buffer, so that it is part of the weights

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.net(features))
