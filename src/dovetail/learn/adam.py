"""Adam without ceremony: torch's own kernel on lists that are made once. For small networks on a CPU the ceremony of
`torch.optim` takes as long as the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Adam", "clip_"]

Gradients = tuple[Tensor, ...] | list[Tensor]


class Adam(torch.optim.Adam):
    """torch.optim.Adam, state and all, that is given its gradients: `descend(gradients)`, one for each parameter."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float) -> None:
        on_gpu = any(p.is_cuda for p in parameters)
        super().__init__(parameters, lr=lr, fused=True, capturable=on_gpu)
        self._listed: list[list[Tensor]] | None = None
        self._one: Tensor  # on the same device: a number would be made into one for each parameter

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        self._listed = None  # the state is of new tensors

    @torch.no_grad()
    def descend(self, gradients: Sequence[Tensor | None], *, bad: Tensor | None = None) -> None:
        """Where `bad` is 1 and not 0, nothing happens; nor to a parameter without a gradient."""
        (group,) = self.param_groups
        if self._listed is None:
            for parameter in group["params"]:
                slots = self.state[parameter]
                if not slots:
                    slots["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    slots["exp_avg"] = torch.zeros_like(parameter)
                    slots["exp_avg_sq"] = torch.zeros_like(parameter)
            states = [self.state[parameter] for parameter in group["params"]]
            names = ("exp_avg", "exp_avg_sq", "step")
            self._listed = [list(group["params"]), *([slots[name] for slots in states] for name in names)]
            self._one = torch.ones((), device=group["params"][0].device)
        given = [gradient for gradient in gradients if gradient is not None]
        lists = self._listed
        if len(given) < len(gradients):
            here = [i for i, gradient in enumerate(gradients) if gradient is not None]
            lists = [[some[i] for i in here] for some in lists]
        parameters, averages, squares, steps = lists
        beta1, beta2 = group["betas"]
        # one for each: given a single tensor, a GPU would be asked what it holds
        torch._foreach_add_(steps, [self._one if bad is None else self._one - bad] * len(steps))
        torch._fused_adam_(
            parameters,
            given,
            averages,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=bad,
        )


@torch.no_grad()
def clip_(gradients: Gradients, max_norm: float) -> Tensor:
    """Scale them down to `max_norm` where they are longer, all by one factor; returns how long they were."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if factor.is_cuda or factor < 1.0:  # a GPU is not asked
        torch._foreach_mul_(gradients, factor)
    return norm
