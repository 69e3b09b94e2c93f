"""Small networks: MLPs alone and in ensembles, a denoiser of action chunks, an encoder of words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies import _cpu_mlp as _cpu

__all__ = [
    "NUM_TIME_FREQUENCIES",
    "DenoisingMLP",
    "EnsembleMLP",
    "PromptEncoder",
    "repeat_last_action",
    "masked_mse",
    "mlp",
    "time_embedding",
]

NUM_TIME_FREQUENCIES = 8


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear, LayerNorm, tanh for each hidden layer; a plain linear layer at the end."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(num_in, num_out), nn.LayerNorm(num_out), nn.Tanh()]
    return _MLP(*layers, nn.Linear(sizes[-2], sizes[-1]))


class _MLP(nn.Sequential):
    """The layers of `mlp`, on a CPU with their gradients by hand."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self._views = _cpu.Views()

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != 2 or not _cpu.is_served(inputs):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        layers = [layer._parameters for layer in self._modules.values() if layer is not None]
        parameters = [
            some[name] for part in (layers[::3], layers[1::3]) for name in ("weight", "bias") for some in part
        ]
        return _cpu.mlp(inputs, parameters, views=self._views)  # type: ignore[arg-type]


def masked_mse(predicted: Tensor, wanted: Tensor, mask: Tensor | None, real: Tensor | None = None) -> Tensor:
    """The mean squared error over [..., A] where the mask [...] is true, and on axes that are `real` [B, A]. Elsewhere
    even NaN does no harm."""
    if real is not None:
        there = real.view(len(real), *(1,) * (predicted.ndim - 2), -1).expand_as(predicted)
        there = there if mask is None else there & mask[..., None]
        missed = torch.where(there, predicted, 0.0) - torch.where(there, wanted, 0.0)
        return missed.square().sum() / there.sum().clamp(min=1)
    if mask is None:
        return functional.mse_loss(predicted, wanted)
    wanted = torch.where(mask[..., None], wanted, predicted.detach())
    return functional.mse_loss(predicted, wanted, reduction="sum") / (mask.sum().clamp(min=1) * wanted.shape[-1])


def repeat_last_action(actions: Tensor, mask: Tensor) -> Tensor:
    """Chunks whose missing actions repeat the last one before them: the network sees them beside the others."""
    index = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, index, -1).cummax(dim=1).values
    held = actions.gather(1, last.clamp(min=0)[..., None].expand_as(actions))
    return torch.where(last[..., None] >= 0, held, 0.0)


def time_embedding(t: Tensor) -> Tensor:
    """A time from 0 to 1 as a network can tell it from others, [B] -> [B, 2 NUM_TIME_FREQUENCIES]."""
    waves = t[:, None] * math.pi * torch.arange(1, NUM_TIME_FREQUENCIES + 1, device=t.device) / 2
    return torch.cat((waves.sin(), waves.cos()), dim=1)


class EnsembleMLP(nn.Module):
    """`num_members` independent MLPs with LayerNorm and tanh, [B, in] -> [num_members, B].

    One batched matrix product per layer, or on a CPU one gradient by hand: ten critics cost far less than ten calls.
    """

    def __init__(self, sizes: Sequence[int], *, num_members: int) -> None:
        super().__init__()
        self.num_members = num_members
        self._views = _cpu.Views()
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

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """All of them, or the `members` of these numbers: who is not asked costs nothing."""
        if _cpu.is_served(inputs):
            asked = range(self.num_members) if members is None else members.tolist()
            return _cpu.ensemble(inputs, self._listed(), members=asked, views=self._views)

        def chosen(parameters: nn.ParameterList) -> list[Tensor]:
            return [p if members is None else p[members] for p in parameters]

        weights, biases = chosen(self.weights), chosen(self.biases)
        hidden = inputs.expand(len(weights[0]), *inputs.shape)  # [E, B, in]
        for weight, bias, scale, shift in zip(
            weights[:-1], biases[:-1], chosen(self.scales), chosen(self.shifts), strict=True
        ):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = torch.tanh(torch.addcmul(shift, hidden, scale))
        return torch.baddbmm(biases[-1], hidden, weights[-1]).squeeze(-1)

    def errors(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What the members say, [num_members, B], without gradients, and the sum of their mean squared errors, with."""
        if _cpu.is_served(inputs) and not self._forward_pre_hooks:  # a hook may set another precision for it
            return _cpu.errors(inputs, targets, self._listed(), views=self._views)
        values = self(inputs)
        return values.detach(), (values - targets).square().mean(1).sum()

    def _listed(self) -> list[Tensor]:
        lists = (self.weights, self.biases, self.scales, self.shifts)
        # not by their own iterator, which takes longer than a small product
        return [p for some in lists for p in some._parameters.values() if p is not None]


class DenoisingMLP(nn.Module):
    """Where a noisy chunk will end, [B, H, A] -> [B, H, A], given features [B, F] and a time [B] from 0 to 1.

    Residual layers over the whole chunk at once. What was seen and the time set the scale and shift of each, so that
    they are never drowned by the chunk's noise.
    """

    def __init__(self, *, horizon: int, num_actions: int, num_features: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.chunk = nn.Linear(horizon * num_actions, hidden)
        self.condition = nn.Sequential(
            nn.Linear(num_features + 2 * NUM_TIME_FREQUENCIES, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.modulations = nn.ModuleList(nn.Linear(hidden, 2 * hidden) for _ in range(num_layers))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
            for _ in range(num_layers)
        )
        self.end = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, horizon * num_actions))

    def forward(self, chunk: Tensor, features: Tensor, t: Tensor) -> Tensor:
        condition = self.condition(torch.cat((features, time_embedding(t)), dim=1))
        hidden = self.chunk(chunk.flatten(1))
        for modulation, layer in zip(self.modulations, self.layers, strict=True):
            scale, shift = modulation(condition).chunk(2, dim=1)
            normed = functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = hidden + layer(torch.addcmul(shift, normed, 1.0 + scale))
        end: Tensor = self.end(hidden)
        return end.view_as(chunk)


class PromptEncoder(nn.Module):
    """uint8 [N, 256], zeros behind the text -> [N, num_features]: the mean over its trigrams of bytes, each of which has
    a learned vector, shared with a few others. Prompts that share words are near each other from the start."""

    NUM_BUCKETS = 2048

    def __init__(self, *, num_features: int) -> None:
        super().__init__()
        self.trigrams = nn.Embedding(self.NUM_BUCKETS, num_features)
        self.out = nn.LayerNorm(num_features)

    def forward(self, prompts: Tensor) -> Tensor:
        letters = functional.pad(prompts.long(), (1, 1))  # so that the shortest of texts has a trigram
        buckets = (letters[:, :-2] * 961 + letters[:, 1:-1] * 31 + letters[:, 2:]) % self.NUM_BUCKETS
        there = (letters[:, 1:-1] > 0).float()[..., None]
        total = (self.trigrams(buckets) * there).sum(dim=1)
        features: Tensor = self.out(total / there.sum(dim=1).clamp(min=1.0))
        return features
