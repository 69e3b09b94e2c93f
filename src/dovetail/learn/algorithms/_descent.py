"""What algorithms share that have one loss and one optimiser, over all of a policy: the step, and the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.core.types import Array
from dovetail.learn.batches import side
from dovetail.learn.finite import require_finite
from dovetail.learn.state import load_optimizer, load_policy, optimizer_state, policy_state, refuse_misfits
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
        **settings: float,
    ) -> None:
        self._policy, self._max_grad_norm = policy, max_grad_norm
        parts = trained(policy.components, algorithm=self.name)  # frozen ones get no optimiser state, and no decay
        self._parameters = [p for module in parts.values() for p in module.parameters()]
        self._optimizer = optimizer(self._parameters, fused=True, **settings)  # type: ignore[arg-type]
        self._generator = torch.Generator().manual_seed(seed)
        self._num_updates = 0

    def _seen(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the policy looks at, the task in words included where it reads."""
        seen = side(batch, "observation")
        if self._policy.spec.prompted:
            seen["prompt"] = batch["prompt"]
        return seen

    def _descend(self, loss: Tensor) -> Tensor:
        """One step down; returns the gradient's norm before it was clipped. Raises SkippedUpdate in place of a step
        that would break the weights."""
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        require_finite(self.name, loss, norm)
        if self._max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm, foreach=True)
        self._optimizer.step()
        return norm

    def policy_weights(self) -> Mapping[str, Mapping[str, Array]]:
        return self._policy.weights()

    # ---- everything a resumed run needs to go on exactly where this one stopped

    def state_dict(self) -> Mapping[str, Array]:
        return {
            "num_updates": np.array(self._num_updates, np.int64),
            "generator": self._generator.get_state().numpy().copy(),
            **policy_state(self._policy),
            **optimizer_state(self.name, self._optimizer),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        with refuse_misfits(self.name):
            load_policy(self._policy, state)
            load_optimizer(self.name, self._optimizer, state)
            self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
            self._num_updates = int(state["num_updates"])
