"""pi0.5: as pi0, but the state is text in the prompt, and time changes the expert's norms (Physical Intelligence, 2025).

Each norm of the expert has a scale, a shift and a gate that depend on time only: y = norm(x) (1 + scale) + shift, and the
result of the layer is multiplied by the gate before it is added to x. They are computed for all norms and all steps at once.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from dovetail.policies.vla.networks.paligemma import PaliGemmaNetwork
from dovetail.policies.vla.networks.sizes import Pi05Sizes
from dovetail.policies.vla.networks.transformers import LayerModulation, Modulation, rms_norm, with_room

__all__ = ["Pi05Network"]


class Pi05Network(PaliGemmaNetwork):
    num_state_tokens: ClassVar[int] = 0

    def __init__(self, sizes: Pi05Sizes) -> None:
        super().__init__(sizes)
        width = sizes.expert.width
        self.time_in = nn.Linear(width, width)
        self.time_out = nn.Linear(width, width)
        # two norms of each layer, and the last one: [scale, shift, gate] each
        self.modulations = nn.Linear(width, (2 * sizes.expert.num_layers + 1) * 3 * width)

    def embed_times(self, times: Tensor) -> Tensor:
        """Scale, shift and gate of all norms, [N, 2 * layers + 1, 3, W]."""
        embedded = functional.silu(self.time_in(self.embed_sine_cosine(times)))
        changes: Tensor = self.modulations(functional.silu(self.time_out(embedded)))
        return changes.view(len(times), -1, 3, self.sizes.expert.width)

    def action_tokens(self, x: Tensor, time: Tensor) -> Tensor:
        tokens: Tensor = self.action_in(x.to(self.dtype))
        return tokens

    def modulation(self, time: Tensor, index: int) -> LayerModulation:
        return LayerModulation(_change(time, 2 * index), _change(time, 2 * index + 1))

    def action_velocity(self, tokens: Tensor, time: Tensor) -> Tensor:
        last = _change(time, -1)
        velocity: Tensor = self.action_out(rms_norm(tokens, last.scale, last.shift))
        return velocity.float()

    def _extended(
        self, keys_values: list[tuple[Tensor, Tensor]], state: Tensor, bias: Tensor, num_valid: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        keys, values = zip(*keys_values, strict=True)
        horizon = self.sizes.horizon
        return [with_room(one, horizon) for one in keys], [with_room(one, horizon) for one in values]


def _change(time: Tensor, norm: int) -> Modulation:
    """Of one norm, [N, 1, W] each."""
    scale, shift, gate = time[:, norm].unsqueeze(2).unbind(1)
    return Modulation(scale, shift, gate)
