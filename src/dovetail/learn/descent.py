"""What algorithms share that have one loss and one optimiser, over all of a policy: the step, and the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.learn.batches import side
from dovetail.learn.device import device_of
from dovetail.learn.finite import require_finite
from dovetail.learn.precision import called
from dovetail.learn.spread import Spread
from dovetail.learn.state import (
    load_generator,
    load_module,
    load_optimizer,
    load_policy,
    module_state,
    optimizer_state,
    policy_state,
    refuse_misfits,
)
from dovetail.policies.parts import trained
from dovetail.policies.trainable import TrainablePolicy

__all__ = ["Descent"]


class Descent:
    """All of an Algorithm but what it wants and its `update`, which takes a step by `_descend` and counts itself in
    `_num_updates`. A subclass has `_policy`, what that looks at in a batch (`_seen`), and a `_generator` for its chance."""

    name: ClassVar[str]

    def __init__(
        self,
        policy: TrainablePolicy,
        optimizer: type[torch.optim.Adam] = torch.optim.AdamW,
        *,
        seed: int,
        max_grad_norm: float | None = None,
        average: float = 0.0,
        **settings: float,
    ) -> None:
        self._policy, self._max_grad_norm = policy, max_grad_norm
        self._make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = partial(
            optimizer,
            fused=True,
            **settings,  # type: ignore[arg-type]
        )
        self._sharded = False
        self._begin()
        self._seed, self._device, self._spread = seed, device_of(policy), Spread()
        self._generator = self._spread.generator(self._device, seed)
        self._average = average
        parts = trained(policy.components, algorithm=self.name)
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in parts.items()} if average else {}
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._num_updates = 0

    def _begin(self) -> None:
        # frozen ones get no optimiser state, and no decay
        parts = trained(self._policy.components, algorithm=self.name)
        self._parameters = [p for module in parts.values() for p in module.parameters()]
        self._optimizer = self._make_optimizer(self._parameters)

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """What computes, by name."""
        return self._policy.components

    def spread(self, spread: Spread) -> None:
        """Take each step over micro-batches, or together with other processes; before the first update."""
        self._spread = spread
        self._generator = spread.generator(self._device, self._seed)

    def check_shard(self) -> None:
        """Refuse what cannot be sharded, long before it is."""
        if self._averaged:
            raise UsageError("a running average of a policy that is spread is not kept: set algorithm.average=0")

    def shard(self) -> None:
        """Keep only a part of each network, its gradients and the optimiser's numbers in each process (FSDP): for policies
        that do not fit into one. After `spread`, before the first update."""
        mesh = init_device_mesh(self._device.type, (self._spread.size,))
        for network in self.networks.values():
            for part in called(network):
                fully_shard(part, mesh=mesh)
        self._sharded = True
        self._begin()

    def _seen(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the policy looks at, the task in words included where it reads."""
        seen = side(batch, "observation")
        if self._policy.spec.prompted:
            seen["prompt"] = batch["prompt"]
        return seen

    def _descend(
        self,
        batch: Mapping[str, Tensor],
        loss_of: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor | float] | None],
    ) -> tuple[Tensor, Tensor] | None:
        """One step down the mean loss of a batch; returns that, and the gradient's norm before it was clipped.

        `loss_of` rows is a mean and what it counts for, so that parts of a batch add up to the whole; None: of these rows
        nothing is to be learned, and if that is so of all, no step is taken. Raises SkippedUpdate in place of one that
        would break the weights.
        """
        self._optimizer.zero_grad()
        loss = self._mean_loss(batch, loss_of)
        if loss is None:
            return None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        require_finite(self.name, loss, norm)
        self._clip(norm)
        self._optimizer.step()
        if self._averaged:
            newest: list[Tensor] = [*self._parameters]
            with torch.no_grad():
                torch._foreach_lerp_(self._averaged_parameters, newest, 1.0 - self._average)
        return loss, norm

    def _clip(self, norm: Tensor) -> None:
        """Gradients, whose norm is known and finite."""
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm, foreach=True)

    def _mean_loss(
        self,
        batch: Mapping[str, Tensor],
        loss_of: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor | float] | None],
    ) -> Tensor | None:
        """The mean over all pieces and processes, and its gradients in `grad`."""
        if self._spread.alone:
            found = loss_of(batch)
            if found is None:
                return None
            found[0].backward()  # type: ignore[no-untyped-call]
            return found[0].detach()
        totals = torch.zeros(2, device=self._device)  # of the weights, and of the losses times them
        for piece in self._spread.pieces(batch):
            found = loss_of(piece)
            if found is not None:
                weighted = found[0] * found[1]
                weighted.backward()  # type: ignore[no-untyped-call]
                totals += torch.stack((torch.as_tensor(found[1], device=self._device), weighted.detach()))
        if self._sharded:  # gradients are added up already, and divided by how many processes there are
            self._spread.add_up([totals])
            if not totals[0]:
                return None
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(gradients, self._spread.size / float(totals[0]))
            return totals[1] / totals[0]
        there = torch.tensor([float(p.grad is not None) for p in self._parameters], device=self._device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        self._spread.add_up([*gradients, totals, there])
        if not totals[0]:
            return None
        torch._foreach_div_(gradients, totals[0])
        for parameter, gradient, count in zip(self._parameters, gradients, there.tolist(), strict=True):
            parameter.grad = gradient if count else None  # what no loss depends on is not decayed either
        return totals[1] / totals[0]

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        """What the robot gets: of an algorithm with an `average`, where its steps have led to on the whole."""
        return self._policy.weights({**self._policy.components, **self._averaged})

    # ---- everything a resumed run needs to go on exactly where this one stopped

    def state_dict(self) -> Mapping[str, Array]:
        state = {
            "num_updates": np.array(self._num_updates, np.int64),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
            **optimizer_state(self.name, self._optimizer),
        }
        for name, module in self._averaged.items():
            state |= module_state(f"averaged/{name}", module)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits(self.name):
            load_policy(self._policy, state)
            load_optimizer(self.name, self._optimizer, state)
            load_generator(self._generator, state, seed=self._seed)
            for name, module in self._averaged.items():
                load_module(f"averaged/{name}", module, state)
            self._num_updates = int(state["num_updates"])
