"""Learner state as flat named arrays, for checkpoints without pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from dovetail.core.errors import CheckpointError, StoreError
from dovetail.core.types import Array, WeightSnapshot
from dovetail.policies.arrays import fill_module, sharded_like, to_numpy, to_tensor
from dovetail.policies.trainable import TrainablePolicy

__all__ = [
    "load_generator",
    "load_module",
    "load_optimizer",
    "load_policy",
    "module_state",
    "optimizer_state",
    "policy_state",
    "raise_checkpoint_errors",
]


def module_state(name: str, module: nn.Module) -> dict[str, Array]:
    return {f"{name}/{key}": to_numpy(value) for key, value in module.state_dict().items()}


def load_module(name: str, module: nn.Module, state: Mapping[str, Array]) -> None:
    fill_module(module, _below(name, state))


def optimizer_state(name: str, optimizer: torch.optim.Optimizer) -> dict[str, Array]:
    """Moments and step counts. The hyperparameters come from the config."""
    return {
        f"optimizer/{name}/{index}/{slot}": to_numpy(value)
        for index, slots in optimizer.state_dict()["state"].items()
        for slot, value in slots.items()
    }


def load_optimizer(name: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Array]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in _below(f"optimizer/{name}", state).items():
        index, slot = key.split("/")
        tensor, parameter = to_tensor(value), parameters[int(index)]
        if tensor.shape == parameter.shape:
            tensor = sharded_like(tensor, parameter)
        slots.setdefault(int(index), {})[slot] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})


def load_generator(generator: torch.Generator, state: Mapping[str, Array], *, seed: int) -> None:
    """Restore a generator. The state of another device type does not fit: then it gets a fresh seed."""
    saved = torch.from_numpy(np.array(state["generator"]))
    if len(saved) == len(generator.get_state()):
        generator.set_state(saved)
    else:
        generator.manual_seed(seed + int(state["num_updates"]))


def policy_state(policy: TrainablePolicy) -> dict[str, Array]:
    return {
        f"policy/{component}/{name}": value
        for component, arrays in policy.weights().items()
        for name, value in arrays.items()
    }


def load_policy(policy: TrainablePolicy, state: Mapping[str, Array]) -> None:
    # a component without arrays has no keys: the normalizer of a policy with images only
    components: dict[str, dict[str, Array]] = {name: {} for name, arrays in policy.weights().items() if not arrays}
    for key, value in _below("policy", state).items():
        component, name = key.split("/", 1)
        components.setdefault(component, {})[name] = value
    policy.load(WeightSnapshot(version=0, components=components, hashes={}))


@contextmanager
def raise_checkpoint_errors(algorithm: str) -> Iterator[None]:
    """Convert the errors for a state that does not fit into a CheckpointError of one line."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError, StoreError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint does not fit algorithm '{algorithm}': {reason}") from error


def _below(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {key[len(prefix) + 1 :]: value for key, value in state.items() if key.startswith(prefix + "/")}
