"""What algorithms share that have one loss and one optimiser, over all of a policy: the step, and the checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.core.types import Array
from dovetail.learn.batches import side
from dovetail.learn.state import (
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
    """All of an Algorithm but what it wants and its `update`, which counts itself in `_num_updates`."""

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
        parts = trained(policy.components, algorithm=self.name)  # frozen ones get no optimiser state, and no decay
        self._parameters: list[Tensor] = [p for module in parts.values() for p in module.parameters()]
        self._optimizer = optimizer(self._parameters, fused=True, **settings)  # type: ignore[arg-type]
        self._average = average
        self._averaged = {n: copy.deepcopy(m).requires_grad_(False) for n, m in parts.items()} if average else {}
        self._averaged_parameters: list[Tensor] = [p for m in self._averaged.values() for p in m.parameters()]
        self._generator = torch.Generator().manual_seed(seed)
        self._num_updates = 0

    def _seen(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the policy looks at, the task in words included where it reads."""
        seen = side(batch, "observation")
        if self._policy.spec.prompted:
            seen["prompt"] = batch["prompt"]
        return seen

    def _descend(self, loss: Tensor) -> Tensor | None:
        """One step down; returns the gradient's norm before it was clipped, where it is."""
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = None
        if self._max_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm, foreach=True)
        self._optimizer.step()
        if self._averaged:
            with torch.no_grad():
                torch._foreach_lerp_(self._averaged_parameters, self._parameters, 1.0 - self._average)
        return norm

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
            for name, module in self._averaged.items():
                load_module(f"averaged/{name}", module, state)
            self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
            self._num_updates = int(state["num_updates"])
