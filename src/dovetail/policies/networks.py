"""Small networks: a plain MLP, and an ensemble of MLPs computed as one batched product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["EnsembleMLP", "mlp"]


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear, LayerNorm, tanh for each hidden layer; a plain linear layer at the end."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(num_in, num_out), nn.LayerNorm(num_out), nn.Tanh()]
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return nn.Sequential(*layers)


class EnsembleMLP(nn.Module):
    """`num_members` independent MLPs with LayerNorm and tanh, [B, in] -> [num_members, B].

    One batched matrix product per layer: ten critics cost far less than ten calls.
    """

    def __init__(self, sizes: Sequence[int], *, num_members: int) -> None:
        super().__init__()
        self.num_members = num_members
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.scales = nn.ParameterList()
        self.shifts = nn.ParameterList()
        for i, (num_in, num_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1.0 / math.sqrt(num_in)
            self.weights.append(nn.Parameter(torch.empty(num_members, num_in, num_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_members, 1, num_out).uniform_(-bound, bound)))
            if i < len(sizes) - 2:
                self.scales.append(nn.Parameter(torch.ones(num_members, 1, num_out)))
                self.shifts.append(nn.Parameter(torch.zeros(num_members, 1, num_out)))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.expand(self.num_members, *inputs.shape)  # [E, B, in]
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if i < len(self.scales):
                hidden = functional.layer_norm(hidden, hidden.shape[-1:])
                hidden = torch.tanh(torch.addcmul(self.shifts[i], hidden, self.scales[i]))
        return hidden.squeeze(-1)
