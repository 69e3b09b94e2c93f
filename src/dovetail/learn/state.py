"""Learner state as flat named arrays: what checkpoints hold, with no pickle anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from dovetail.core.errors import CheckpointError, StoreError
from dovetail.core.types import Array, WeightSnapshot
from dovetail.policies.trainable import TrainablePolicy

__all__ = [
    "load_module",
    "load_optimizer",
    "load_policy",
    "module_state",
    "optimizer_state",
    "policy_state",
    "refuse_misfits",
]


def module_state(name: str, module: nn.Module) -> dict[str, Array]:
    return {f"{name}/{key}": value.detach().numpy().copy() for key, value in module.state_dict().items()}


def load_module(name: str, module: nn.Module, state: Mapping[str, Array]) -> None:
    module.load_state_dict({key: _tensor(value) for key, value in _below(name, state).items()})


def optimizer_state(name: str, optimizer: torch.optim.Optimizer) -> dict[str, Array]:
    """Moments and step counts; the hyper-parameters come from the config."""
    return {
        f"optimizer/{name}/{index}/{slot}": value.numpy().copy()
        for index, slots in optimizer.state_dict()["state"].items()
        for slot, value in slots.items()
    }


def load_optimizer(name: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Array]) -> None:
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in _below(f"optimizer/{name}", state).items():
        index, slot = key.split("/")
        slots.setdefault(int(index), {})[slot] = _tensor(value)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


def policy_state(policy: TrainablePolicy) -> dict[str, Array]:
    return {
        f"policy/{component}/{name}": value
        for component, arrays in policy.weights().items()
        for name, value in arrays.items()
    }


def load_policy(policy: TrainablePolicy, state: Mapping[str, Array]) -> None:
    # one without arrays left no trace: the normaliser of a policy that sees images alone
    components: dict[str, dict[str, Array]] = {name: {} for name, arrays in policy.weights().items() if not arrays}
    for key, value in _below("policy", state).items():
        component, name = key.split("/", 1)
        components.setdefault(component, {})[name] = value
    policy.load(WeightSnapshot(version=0, components=components, hashes={}))


@contextmanager
def refuse_misfits(algorithm: str) -> Iterator[None]:
    """Turn what torch says of a state that does not fit into one line."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError, StoreError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint does not fit algorithm '{algorithm}': {reason}") from error


def _below(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {key[len(prefix) + 1 :]: value for key, value in state.items() if key.startswith(prefix + "/")}


def _tensor(value: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(value))
