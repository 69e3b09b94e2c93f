"""A model of the user: the class that `policy.model_class` names, its methods, and checks of what they return.

    class MyModel(torch.nn.Module):
        def forward(self, observations, deterministic=False): ...     # actions [B, A] or chunks [B, H, A]
        def get_value(self, observations): ...                        # [B] or [B, 1]
        def evaluate_actions(self, observations, actions): ...        # log-density, entropy, and perhaps the value, [B] each
                                                                      # of chunks: [B], or [B, H] of each action
        def imitation_loss(self, observations, actions, mask): ...    # a number, or several by name

Only `forward` is required. `observations` is a TensorDict (see `observations`). As in EmbodiChain, a method may also return
a TensorDict, with `action` or `action_chunk`, `sample_log_prob`, `entropy` and `value`; and `evaluate_actions` may take
one argument, the observations with `action` among them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from dovetail.core.errors import PluginError, UsageError
from dovetail.core.specs import PolicySpec
from dovetail.policies.own_networks import build_network, load_network_class
from dovetail.policies.vla.observations import group_of

__all__ = ["ModelClass", "Sampled", "UserModel"]


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The class, imported and checked."""

    name: str
    type: type[nn.Module]

    @staticmethod
    def load(name: str) -> ModelClass:
        found = load_network_class(name, setting="policy.model_class")
        if found.forward is nn.Module.forward:
            raise PluginError(f"policy.model_class '{name}' has no forward, which returns actions")
        return ModelClass(name, found)

    def missing(self, *methods: str) -> list[str]:
        return [method for method in methods if not callable(getattr(self.type, method, None))]

    def build(self, options: Mapping[str, Any], spec: PolicySpec) -> UserModel:
        """Construct it with `options` and the sizes that it asks for."""
        module = build_network(self.type, options, _sizes(spec), name=self.name, setting="policy.model_config")
        return UserModel(module, name=self.name, spec=spec)


def _sizes(spec: PolicySpec) -> dict[str, int]:
    """Sizes that follow from the robot. A constructor gets those that it has parameters for."""
    low_dimensional = [key for key, array in spec.observation.items() if group_of(array) == "proprio"]
    return {
        "action_dim": spec.action.shape[0],
        "horizon": spec.horizon,
        "num_cameras": sum(group_of(array) == "rgb" for array in spec.observation.values()),
        "proprio_dim": sum(spec.observation[key].shape[0] * spec.history.get(key, 1) for key in low_dimensional),
    }


class Sampled(NamedTuple):
    """What `forward` returned: chunks [B, H, A], and what it told about them: their log-density, [B] or [B, H] of each
    action of chunks, and the value [B]."""

    actions: Tensor
    log_prob: Tensor | None = None
    value: Tensor | None = None


class UserModel(nn.Module):
    """The user's module behind one entrance: all methods are called through `forward`, so that the hooks of a learner
    (bf16, sharding) see every call. Its state is that of the user's module, with the same names."""

    def __init__(self, module: nn.Module, *, name: str, spec: PolicySpec) -> None:
        super().__init__()
        self.module, self._name = module, name
        self._horizon, self._num_actions = spec.horizon, spec.action.shape[0]
        self._takes_deterministic = "deterministic" in inspect.signature(module.forward).parameters
        evaluate = getattr(module, "evaluate_actions", None)
        self._takes_actions = evaluate is not None and len(inspect.signature(evaluate).parameters) > 1

    def forward(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "forward":
            return self.module(*arguments, **options)  # with its own hooks
        return getattr(self.module, method)(*arguments, **options)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    # ---- the methods

    def sample(self, observations: TensorDict, *, deterministic: bool) -> Sampled:
        options = {"deterministic": deterministic} if self._takes_deterministic else {}
        found = self("forward", _shallow(observations), **options)
        num_rows, log_prob, value = len(observations), None, None
        if isinstance(found, TensorDictBase):
            log_prob, value = found.get("sample_log_prob", None), found.get("value", None)
            log_prob = None if log_prob is None else self._densities(log_prob, "forward", num_rows)
            value = None if value is None else self._rows(value, "forward", num_rows)
            name = "action_chunk" if "action_chunk" in found.keys() else "action"  # noqa: SIM118 - no iterator
            found = found.get(name, None)
        expected: list[tuple[int, ...]] = [(num_rows, self._horizon, self._num_actions)]
        if self._horizon == 1:
            expected.append((num_rows, self._num_actions))
        if not isinstance(found, Tensor) or tuple(found.shape) not in expected:
            raise self._wrong("forward", found, expected)
        return Sampled(found.detach().float().reshape(expected[0]), log_prob, value)

    def value(self, observations: TensorDict) -> Tensor:
        found = self("get_value", _shallow(observations))
        if isinstance(found, TensorDictBase):
            found = found.get("value", None)
        return self._rows(found, "get_value", len(observations))

    def evaluate(self, observations: TensorDict, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The log-density of actions [B, A] or chunks [B, H, A], the entropy, and the value if the method returns one.
        [B] each; the first two may be [B, H] for chunks."""
        arguments = (actions,) if self._takes_actions else ()
        found = self("evaluate_actions", _shallow(observations).set("action", actions), *arguments)
        if isinstance(found, TensorDictBase):
            parts: Sequence[Any] = [found.get(name, None) for name in ("sample_log_prob", "entropy", "value")]
        elif isinstance(found, tuple) and len(found) in (2, 3):
            parts = [*found, None][:3]
        else:
            raise UsageError(
                f"{self._name}.evaluate_actions should return log-density and entropy, and optionally the value, got "
                f"{_describe(found)}"
            )
        log_prob, entropy = (self._densities(part, "evaluate_actions", len(actions)) for part in parts[:2])
        value = None if parts[2] is None else self._rows(parts[2], "evaluate_actions", len(actions))
        return log_prob, entropy, value

    def imitation_loss(
        self,
        observations: TensorDict,
        actions: Tensor,
        mask: Tensor,
        *,
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> Tensor:
        """One number, or the sum of several losses by name, multiplied by their `weights`. Without a weight: by 1."""
        found = self("imitation_loss", _shallow(observations), actions, mask)
        if isinstance(found, Mapping):
            if unknown := sorted(weights.keys() - found.keys()):
                raise UsageError(
                    f"policy.loss_weights names '{unknown[0]}', but {self._name}.imitation_loss returns {', '.join(found)}"
                )
            found = sum(weights.get(name, 1.0) * loss for name, loss in found.items())
        elif weights:
            raise UsageError(
                f"policy.loss_weights needs losses by name, but {self._name}.imitation_loss returns one"
            )
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise self._wrong("imitation_loss", found, [()])
        return found.float().reshape(())

    # ---- checks

    def _densities(self, found: Any, method: str, num_rows: int) -> Tensor:
        """Those of chunks may be one for each action."""
        if self._horizon == 1:
            return self._rows(found, method, num_rows)
        of_actions = (num_rows, self._horizon)
        if isinstance(found, Tensor) and tuple(found.shape) == of_actions:
            return found.float()
        if isinstance(found, Tensor) and tuple(found.shape) in ((num_rows,), (num_rows, 1)):
            return found.float().reshape(num_rows)
        raise self._wrong(method, found, [of_actions, (num_rows,), (num_rows, 1)])

    def _rows(self, found: Any, method: str, num_rows: int) -> Tensor:
        if not isinstance(found, Tensor) or tuple(found.shape) not in ((num_rows,), (num_rows, 1)):
            raise self._wrong(method, found, [(num_rows,), (num_rows, 1)])
        return found.float().reshape(num_rows)

    def _wrong(self, method: str, found: Any, expected: Sequence[tuple[int, ...]]) -> UsageError:
        shapes = " or ".join(str(list(shape)) if shape else "one number" for shape in expected)
        return UsageError(f"{self._name}.{method} should return a tensor {shapes}, got {_describe(found)}")


def _shallow(observations: TensorDict) -> TensorDict:
    """The same tensors in another TensorDict, so that a method may add keys. `copy` would copy each text."""
    return observations.select(*observations.keys())


def _describe(found: Any) -> str:
    if isinstance(found, Tensor):
        return str(list(found.shape))
    if isinstance(found, tuple):
        return f"a tuple of {len(found)}"
    return "nothing" if found is None else f"a {type(found).__name__}"
