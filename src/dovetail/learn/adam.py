"""Adam for small networks: torch's fused kernel on lists that are built once, and one optimizer per group of parameters.

On a CPU, the bookkeeping of `torch.optim` takes as long as the arithmetic of a small network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.finite import require_finite
from dovetail.learn.schedules import OptimizerSettings, lr_factor, optimizer_group
from dovetail.learn.state import load_optimizer, optimizer_state
from dovetail.learn.torch_optimizers import TorchAdam

__all__ = ["Adam", "Optimizers", "clip_"]

Gradients = tuple[Tensor, ...] | list[Tensor]


class Optimizers:
    """One Adam per named group of parameters.

    `step(loss, "critic", "encoder")` changes exactly these groups. Each group's gradient is clipped by itself.
    """

    def __init__(self, *, lr: float, max_grad_norm: float) -> None:
        self.parallel = DataParallel()
        self.grad_norms: dict[str, Tensor] = {}  # of each group's latest step, before clipping
        self.parameters: dict[str, list[Tensor]] = {}
        self._adams: dict[str, Adam] = {}
        self._lr, self._max_grad_norm = lr, max_grad_norm
        self._own: Mapping[str, OptimizerSettings] = {}  # of groups

    def add(self, name: str, parameters: Sequence[Tensor]) -> None:
        """Add a group, or replace it."""
        self.parameters[name] = list(parameters)
        self._adams[name] = Adam(self.parameters[name], lr=self._lr, own=self._own.get(name))

    def configure(self, settings: Mapping[str, OptimizerSettings], *, algorithm: str) -> None:
        """Give groups settings of their own. A schedule counts the steps of its group. Call before the first step."""
        for name in settings:
            if name not in self.parameters:
                raise UsageError(
                    f"learner.optimizers: algorithm '{algorithm}' trains no '{name}'. It trains {', '.join(self.parameters)}"
                )
        self._own = settings
        for name in settings:
            self.add(name, self.parameters[name])

    def step(self, loss: Tensor, *names: str, gradients: Sequence[Tensor | None] | None = None) -> None:
        """Take one step down `loss`; `gradients` replaces autograd's. Raise SkippedUpdate instead if one is not finite."""
        groups = {name: self.parameters[name] for name in names}
        if gradients is None:
            # only of these parameters: the actor's loss flows through the critic without changing it.
            # A loss may not depend on some of them, as cloning does not on a flow's noise
            wanted = [p for parameters in groups.values() for p in parameters]
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        loss = loss.detach()
        if not self.parallel.is_single:  # average over all processes, before clipping
            loss = loss.clone()
            gradients = tuple(None if gradient is None else gradient.clone() for gradient in gradients)
            together = [*(gradient for gradient in gradients if gradient is not None), loss]
            self.parallel.sum_(together)
            torch._foreach_div_(together, self.parallel.size)
        capturing = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        bad: Tensor | None = None
        remaining = iter(gradients)
        per_group: dict[str, list[Tensor | None]] = {}
        for name, parameters in groups.items():
            per_group[name] = [next(remaining) for _ in parameters]
            for parameter, gradient in zip(parameters, per_group[name], strict=True):
                parameter.grad = gradient
            self.grad_norms[name] = norm = clip_(
                [gradient for gradient in per_group[name] if gradient is not None], self._max_grad_norm
            )
            if capturing:  # a CUDA graph cannot raise: such a step changes nothing
                bad = (loss + norm).isfinite().logical_not().float()
            else:
                require_finite(name, loss, norm)
        for name in groups:
            self._adams[name].descend(per_group[name], bad=bad)

    def state_dict(self) -> dict[str, Array]:
        return {
            key: value for name, adam in self._adams.items() for key, value in optimizer_state(name, adam).items()
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        for name, adam in self._adams.items():
            load_optimizer(name, adam, state)


class Adam(TorchAdam):
    """torch.optim.Adam with the same state, but `descend(gradients)` takes one gradient per parameter. `own` settings may
    make it AdamW, with a schedule."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float, own: OptimizerSettings | None = None) -> None:
        on_gpu = any(p.is_cuda for p in parameters)
        super().__init__(parameters, lr=lr, fused=True, capturable=on_gpu)
        self._own, self._num_steps = own, 0
        if own is not None:
            self.param_groups[0].update(optimizer_group(own))
        self._base_lr: float = self.param_groups[0]["lr"]
        self._lists: list[list[Tensor]] | None = None
        self._one: Tensor  # on the device: a Python number would become one tensor per parameter

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        self._lists = None  # the state consists of new tensors
        self._num_steps = max((int(slots["step"]) for slots in self.state.values()), default=0)

    @torch.no_grad()
    def descend(self, gradients: Sequence[Tensor | None], *, bad: Tensor | None = None) -> None:
        """Take one step. Parameters without a gradient stay, and all of them where `bad` is 1 instead of 0."""
        (group,) = self.param_groups
        if self._own is not None:
            group["lr"] = self._base_lr * lr_factor(self._own, self._num_steps)
        self._num_steps += 1
        if self._lists is None:
            for parameter in group["params"]:
                slots = self.state[parameter]
                if not slots:
                    slots["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    slots["exp_avg"] = torch.zeros_like(parameter)
                    slots["exp_avg_sq"] = torch.zeros_like(parameter)
            states = [self.state[parameter] for parameter in group["params"]]
            names = ("exp_avg", "exp_avg_sq", "step")
            self._lists = [list(group["params"]), *([slots[name] for slots in states] for name in names)]
            self._one = torch.ones((), device=group["params"][0].device)
        given = [gradient for gradient in gradients if gradient is not None]
        lists = self._lists
        if len(given) < len(gradients):
            indices = [i for i, gradient in enumerate(gradients) if gradient is not None]
            lists = [[tensors[i] for i in indices] for tensors in lists]
        parameters, averages, squares, steps = lists
        beta1, beta2 = group["betas"]
        # a list of tensors: a single one would be read back from the GPU
        torch._foreach_add_(steps, [self._one if bad is None else self._one - bad] * len(steps))
        step = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        step(
            parameters,
            given,
            averages,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=bad,
        )


@torch.no_grad()
def clip_(gradients: Gradients, max_norm: float) -> Tensor:
    """Scale the gradients down to `max_norm` if their common norm is larger; return the norm before that."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if factor.is_cuda or factor < 1.0:  # no comparison on a GPU, which would synchronize
        torch._foreach_mul_(gradients, factor)
    return norm
