"""Small networks: MLPs, ensembles of MLPs, a denoiser of action chunks, a prompt encoder; and losses with masks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies import _cpu_mlp

__all__ = [
    "NUM_TIME_FREQUENCIES",
    "DenoisingMLP",
    "EnsembleMLP",
    "PromptEncoder",
    "masked_mse",
    "mlp",
    "repeat_last_action",
    "time_embedding",
]

NUM_TIME_FREQUENCIES = 8


_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


def mlp(sizes: Sequence[int], *, activation: str = "tanh") -> nn.Sequential:
    """Linear, LayerNorm and an activation for each hidden layer, then a linear layer."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(num_in, num_out), nn.LayerNorm(num_out), _ACTIVATIONS[activation]()]
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return _MLP(*layers) if activation == "tanh" else nn.Sequential(*layers)


class _MLP(nn.Sequential):
    """The layers of `mlp` with tanh. On a CPU, `_cpu_mlp` computes them and their gradients."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self._views = _cpu_mlp.ParameterViews()

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.ndim != 2 or not _cpu_mlp.supports(inputs):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        layers = [layer._parameters for layer in self._modules.values() if layer is not None]
        linear, layer_norm = layers[::3], layers[1::3]
        parameters = [of[name] for kind in (linear, layer_norm) for name in ("weight", "bias") for of in kind]
        return _cpu_mlp.mlp(inputs, parameters, views=self._views)  # type: ignore[arg-type]


def masked_mse(predicted: Tensor, target: Tensor, mask: Tensor | None, axis_mask: Tensor | None = None) -> Tensor:
    """The mean squared error over [..., A] where `mask`, [...] or [..., A], and `axis_mask` [B, A] are true. Other values do
    not matter, even NaN."""
    if mask is not None:
        mask = mask.reshape(*predicted.shape[:-1], -1)  # [..., 1] or [..., A]
    if axis_mask is not None:
        valid = axis_mask.view(len(axis_mask), *(1,) * (predicted.ndim - 2), -1).expand_as(predicted)
        valid = valid if mask is None else valid & mask
        error = torch.where(valid, predicted, 0.0) - torch.where(valid, target, 0.0)
        return error.square().sum() / valid.sum().clamp(min=1)
    if mask is None:
        return functional.mse_loss(predicted, target)
    target = torch.where(mask, target, predicted.detach())
    num_valid = mask.sum().clamp(min=1) * (target.shape[-1] // mask.shape[-1])
    return functional.mse_loss(predicted, target, reduction="sum") / num_valid


def repeat_last_action(actions: Tensor, mask: Tensor) -> Tensor:
    """Chunks [B, H, A] whose missing actions repeat the last valid one before them. A network gets the whole chunk as
    input, so missing actions need a plausible value."""
    index = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, index, -1).cummax(dim=1).values
    repeated = actions.gather(1, last.clamp(min=0)[..., None].expand_as(actions))
    return torch.where(last[..., None] >= 0, repeated, 0.0)


def time_embedding(t: Tensor) -> Tensor:
    """Sines and cosines of a time from 0 to 1, [B] -> [B, 2 NUM_TIME_FREQUENCIES]."""
    phases = t[:, None] * math.pi * torch.arange(1, NUM_TIME_FREQUENCIES + 1, device=t.device) / 2
    return torch.cat((phases.sin(), phases.cos()), dim=1)


class EnsembleMLP(nn.Module):
    """`num_members` independent MLPs with LayerNorm and tanh, [B, in] -> [num_members, B].

    One batched matrix product per layer on a GPU, hand-written gradients on a CPU: ten critics cost far less than ten
    separate networks.
    """

    def __init__(self, sizes: Sequence[int], *, num_members: int) -> None:
        super().__init__()
        self.num_members = num_members
        self._views = _cpu_mlp.ParameterViews()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.scales = nn.ParameterList()  # of LayerNorm
        self.shifts = nn.ParameterList()
        for i, (num_in, num_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1.0 / math.sqrt(num_in)
            self.weights.append(nn.Parameter(torch.empty(num_members, num_in, num_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_members, 1, num_out).uniform_(-bound, bound)))
            if i < len(sizes) - 2:
                self.scales.append(nn.Parameter(torch.ones(num_members, 1, num_out)))
                self.shifts.append(nn.Parameter(torch.zeros(num_members, 1, num_out)))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """The outputs of all members, or only of those whose indices `members` holds."""
        if _cpu_mlp.supports(inputs):
            chosen = range(self.num_members) if members is None else members.tolist()
            return _cpu_mlp.ensemble(inputs, self._all_parameters(), members=chosen, views=self._views)

        def select(parameters: nn.ParameterList) -> list[Tensor]:
            return [p if members is None else p[members] for p in parameters]

        weights, biases = select(self.weights), select(self.biases)
        hidden = inputs.expand(len(weights[0]), *inputs.shape)  # [E, B, in]
        for weight, bias, scale, shift in zip(
            weights[:-1], biases[:-1], select(self.scales), select(self.shifts), strict=True
        ):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = torch.tanh(torch.addcmul(shift, hidden, scale))
        return torch.baddbmm(biases[-1], hidden, weights[-1]).squeeze(-1)

    def errors(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs [num_members, B] without gradients, and the sum of the members' mean squared errors with gradients."""
        if _cpu_mlp.supports(inputs) and not self._forward_pre_hooks:  # a hook may set another precision
            return _cpu_mlp.errors(inputs, targets, self._all_parameters(), views=self._views)
        values = self(inputs)
        return values.detach(), (values - targets).square().mean(1).sum()

    def _all_parameters(self) -> list[Tensor]:
        lists = (self.weights, self.biases, self.scales, self.shifts)
        # iterating over a ParameterList takes longer than a small matrix product
        return [p for parameters in lists for p in parameters._parameters.values() if p is not None]


class DenoisingMLP(nn.Module):
    """Predicts the clean chunk from a noisy one, [B, H, A] -> [B, H, A], given features [B, F] and a time [B] in [0, 1].

    Residual layers over the whole chunk. Features and time set the scale and shift of each layer, so that the noise in
    the chunk cannot hide them.
    """

    def __init__(self, *, horizon: int, num_actions: int, num_features: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.chunk = nn.Linear(horizon * num_actions, hidden)
        self.condition = nn.Sequential(
            nn.Linear(num_features + 2 * NUM_TIME_FREQUENCIES, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
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
    """Encodes a task prompt, uint8 [N, L] padded with zeros -> [N, num_features]: the mean of the learned embeddings of
    its byte trigrams, hashed into buckets. Prompts with common words are similar from the start."""

    NUM_BUCKETS = 2048

    def __init__(self, *, num_features: int) -> None:
        super().__init__()
        self.trigrams = nn.Embedding(self.NUM_BUCKETS, num_features)
        self.out = nn.LayerNorm(num_features)

    def forward(self, prompts: Tensor) -> Tensor:
        letters = functional.pad(prompts.long(), (1, 1))  # so that one letter already makes a trigram
        buckets = (letters[:, :-2] * 961 + letters[:, 1:-1] * 31 + letters[:, 2:]) % self.NUM_BUCKETS
        mask = (letters[:, 1:-1] > 0).float()[..., None]
        total = (self.trigrams(buckets) * mask).sum(dim=1)
        features: Tensor = self.out(total / mask.sum(dim=1).clamp(min=1.0))
        return features
