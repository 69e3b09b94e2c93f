"""Base class of algorithms with one loss and one optimizer over a whole policy: the step and the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import UsageError
from dovetail.core.types import Array
from dovetail.learn.batches import observations_of
from dovetail.learn.data_parallel import DataParallel
from dovetail.learn.device import device_of
from dovetail.learn.finite import require_finite
from dovetail.learn.precision import callable_modules
from dovetail.learn.schedules import OptimizerSettings, lr_factor, optimizer_group
from dovetail.learn.state import (
    load_generator,
    load_module,
    load_optimizer,
    load_policy,
    module_state,
    optimizer_state,
    policy_state,
    raise_checkpoint_errors,
)
from dovetail.learn.torch_optimizers import TorchAdamW
from dovetail.policies.arrays import whole
from dovetail.policies.components import check_component_names, trainable_components
from dovetail.policies.random_draws import uniform
from dovetail.policies.trainable import ADVANTAGE, AdvantageConditioned, ShardsItself, TrainablePolicy

__all__ = ["Descent"]

_DROPPED_SHARE = (
    0.3  # of the rows are imitated without an advantage, so that guidance can compare with and without
)
LossOf = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor | float] | None]


class Descent:
    """All of the Algorithm contract except `sample_request` and `update`.

    A subclass calls `_minimize` in its `update` and increments `_num_updates`. It has the `_policy`, the policy's inputs
    in a batch (`_observations`), and a `_generator` for random draws.
    """

    name: ClassVar[str]

    def __init__(
        self,
        policy: TrainablePolicy,
        optimizer: type[torch.optim.Adam] = TorchAdamW,
        *,
        seed: int,
        max_grad_norm: float | None = None,
        clip_each_component: bool = False,
        average: float = 0.0,
        **settings: float,
    ) -> None:
        """`average` is the share that a moving average of the weights keeps at each update; 0: the robot gets the latest
        weights. `settings` go to the optimizer."""
        self._policy, self._max_grad_norm, self._clip_each = policy, max_grad_norm, clip_each_component
        self._make_optimizer: Callable[[list[Any]], torch.optim.Optimizer] = partial(
            optimizer,
            fused=True,
            **settings,  # type: ignore[arg-type]
        )
        self._sharded = False
        self._base_lr = settings["lr"]
        self._own_optimizers: Mapping[str, OptimizerSettings] = {}  # of components
        self._collect_parameters()
        self._grad_norms: dict[str, Tensor] = {}  # per component, if each one is clipped by itself
        self._seed, self._device, self._parallel = seed, device_of(policy), DataParallel()
        self._generator = self._parallel.make_generator(self._device, seed)
        self._average = average
        trained = trainable_components(policy.components, algorithm=self.name)
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in trained.items()} if average else {}
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._num_updates = 0

    def _collect_parameters(self) -> None:
        # frozen components get no optimizer state and no weight decay
        trained = trainable_components(self._policy.components, algorithm=self.name)
        self._parameters = [p for module in trained.values() for p in module.parameters()]
        if not self._own_optimizers:
            self._optimizer = self._make_optimizer(self._parameters)
            return
        own = {name: optimizer_group(settings) for name, settings in self._own_optimizers.items()}
        groups = [
            {"params": list(module.parameters()), "component": name, **own.get(name, {})}
            for name, module in trained.items()
        ]
        self._optimizer = self._make_optimizer(groups)

    def set_optimizers(self, optimizers: Mapping[str, OptimizerSettings]) -> None:
        """Give components optimizer settings of their own. Call before the first update."""
        trained = trainable_components(self._policy.components, algorithm=self.name)
        check_component_names(optimizers, trained, policy=self._policy.spec.name)
        self._own_optimizers = optimizers
        self._collect_parameters()

    def _set_lr(self, lr: float) -> None:
        """`lr` for the components without settings of their own; their schedules for the others."""
        for group in self._optimizer.param_groups:
            own = self._own_optimizers.get(group.get("component", ""))
            group["lr"] = lr if own is None else (own.lr or self._base_lr) * lr_factor(own, self._num_updates)

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        return self._policy.components

    def set_parallel(self, parallel: DataParallel) -> None:
        """Divide each step over micro-batches or processes. Call before the first update."""
        self._parallel = parallel
        self._generator = parallel.make_generator(self._device, self._seed)

    def check_shard(self) -> None:
        if isinstance(self._policy, ShardsItself):
            self._policy.check_shard()
        if self._averaged:
            raise UsageError("learner.shard does not support an average of the weights. Set algorithm.average=0")

    def shard(self) -> None:
        """Divide networks, gradients and optimizer state over the processes (FSDP), for policies that do not fit on one
        device. Call after `set_parallel` and before the first update."""
        from torch.distributed.device_mesh import init_device_mesh  # these take long to load
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._device.type, (self._parallel.size,))
        if isinstance(self._policy, ShardsItself):
            self._policy.shard(mesh)
        else:
            for network in self.networks.values():
                for module in callable_modules(network):
                    fully_shard(module, mesh=mesh)
        self._sharded = True
        self._collect_parameters()

    def _observations(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The policy's inputs, with the prompt if it reads one. What is imitated has a positive advantage."""
        observations = observations_of(batch, "observation")
        if self._policy.spec.prompted:
            observations["prompt"] = batch["prompt"]
        if isinstance(self._policy, AdvantageConditioned) and self._policy.takes_advantage:
            shape = (len(next(iter(observations.values()))),)
            kept = uniform(shape, generator=self._generator, device=self._device) >= _DROPPED_SHARE
            observations[ADVANTAGE] = kept.long()
        return observations

    def _minimize(self, batch: Mapping[str, Tensor], loss_of: LossOf) -> tuple[Tensor, Tensor] | None:
        """Take one step down the mean loss of a batch; return the loss and the gradient's norm before clipping.

        `loss_of(rows)` returns a mean and its weight, so that micro-batches add up to the whole batch. None: these rows have
        nothing to learn; if that holds for all rows, no step is taken. Raises SkippedUpdate if the loss or the gradient
        is not finite.
        """
        self._optimizer.zero_grad()
        loss = self._backward(batch, loss_of)
        if loss is None:
            return None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        norm = whole(norm)
        require_finite(self.name, loss, norm)
        if self._own_optimizers:
            self._set_lr(self._scheduled_lr())
        self._clip_gradients(norm)
        self._optimizer.step()
        if self._averaged:
            newest: list[Tensor] = [*self._parameters]
            with torch.no_grad():
                torch._foreach_lerp_(self._averaged_parameters, newest, 1.0 - self._average)
        return loss, norm

    def _scheduled_lr(self) -> float:
        """The learning rate of the next update, without settings of single components."""
        return self._base_lr

    def _clip_gradients(self, norm: Tensor) -> None:
        if self._max_grad_norm is None:
            return
        if not self._clip_each:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm, foreach=True)
            return
        self._grad_norms = {
            name: torch.nn.utils.clip_grad_norm_(module.parameters(), self._max_grad_norm)
            for name, module in self._policy.components.items()
            if any(parameter.grad is not None for parameter in module.parameters())
        }

    def _backward(self, batch: Mapping[str, Tensor], loss_of: LossOf) -> Tensor | None:
        """Return the mean loss over all micro-batches and processes; its gradients are in `grad`."""
        if self._parallel.is_single:
            found = loss_of(batch)
            if found is None:
                return None
            found[0].backward()  # type: ignore[no-untyped-call]
            return found[0].detach()
        totals = torch.zeros(2, device=self._device)  # sum of the weights, sum of weight * loss
        for rows in self._parallel.micro_batches(batch):
            found = loss_of(rows)
            if found is not None:
                weighted = found[0] * found[1]
                weighted.backward()  # type: ignore[no-untyped-call]
                totals += torch.stack((torch.as_tensor(found[1], device=self._device), weighted.detach()))
        if self._sharded:  # FSDP has averaged the gradients over the processes
            self._parallel.sum_([totals])
            if not totals[0]:
                return None
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(gradients, self._parallel.size / float(totals[0]))
            return totals[1] / totals[0]
        has_grad = torch.tensor([float(p.grad is not None) for p in self._parameters], device=self._device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        self._parallel.sum_([*gradients, totals, has_grad])
        if not totals[0]:
            return None
        torch._foreach_div_(gradients, totals[0])
        for parameter, gradient, count in zip(self._parameters, gradients, has_grad.tolist(), strict=True):
            parameter.grad = gradient if count else None  # without a gradient there is no weight decay either
        return totals[1] / totals[0]

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights({**self._policy.components, **self._averaged})

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
        with raise_checkpoint_errors(self.name):
            load_policy(self._policy, state)
            load_optimizer(self.name, self._optimizer, state)
            load_generator(self._generator, state, seed=self._seed)
            for name, module in self._averaged.items():
                load_module(f"averaged/{name}", module, state)
            self._num_updates = int(state["num_updates"])
