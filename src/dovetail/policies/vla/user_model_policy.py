"""A torch model of your own as a policy: it acts, and learns by the methods that its class has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from dovetail.core.errors import UsageError, one_line
from dovetail.core.specs import RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array
from dovetail.policies.base import NetworkPolicy, policy_spec
from dovetail.policies.components import NORMALIZER
from dovetail.policies.device import find_device
from dovetail.policies.inputs import check_inputs, zero_inputs
from dovetail.policies.trainable import TrainablePolicy, ValuedPolicy
from dovetail.policies.vla.observations import nest
from dovetail.policies.vla.settings import MODEL, UserModelConfig
from dovetail.policies.vla.user_model import ModelClass, Sampled

__all__ = ["UserModelConfig", "UserModelPolicy"]

_FIXED_SEED = 0  # of deterministic chunks
# of a method that is for single actions
_MODEL_ERRORS = (UsageError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
_DENSITY, _VALUE, _LOSS = "evaluate_actions", "get_value", "imitation_loss"


class UserModelPolicy(NetworkPolicy):
    """See the Policy contract. An object of it is also a TrainablePolicy or a ValuedPolicy if the model's class has the
    methods for it.

    `features` are the nested observations, which only the model reads. Algorithms with networks of their own cannot use
    them.
    """

    Config: ClassVar[type[UserModelConfig]] = UserModelConfig

    def __new__(cls, config: UserModelConfig, *, robot: RobotSpec, seed: int = 0) -> UserModelPolicy:
        model = ModelClass.load(config.model_class)
        if not _can_imitate(model):
            return object.__new__(UserModelPolicy)
        return object.__new__(_TrainableVla if model.missing(_VALUE, _DENSITY) else _ValuedVla)

    def __init__(self, config: UserModelConfig, *, robot: RobotSpec, seed: int = 0) -> None:
        spec = policy_spec(
            "vla",
            robot,
            inputs=config.inputs,
            history=config.history,
            images=True,
            horizon=config.horizon,
            prompted=config.language,
        )
        super().__init__(spec, config.all_components)
        self._config = config
        # A model with weights from elsewhere was trained with values as they are, unless the config says otherwise.
        self._is_raw = (
            config.checkpoint is not None and not config.normalization and NORMALIZER not in config.components
        )
        self._class = ModelClass.load(config.model_class)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = self._class.build(config.model_options, spec)

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {MODEL: self._model}

    def why_not(self, contract: type) -> str:
        """Which methods of the model's class this contract needs; empty if it has them."""
        name = self._config.model_class
        if contract is ValuedPolicy and (missing := self._class.missing(_VALUE, _DENSITY)):
            return f"{name} has no {' and no '.join(missing)}"
        if contract is ValuedPolicy:
            return self._refused_chunks
        if contract is TrainablePolicy and self._class.missing(_LOSS):
            if self._class.missing(_DENSITY):
                return f"{name} has no {_LOSS} and no {_DENSITY}"
            if self._refused_chunks:
                return f"{name} has no {_LOSS}, and {self._refused_chunks}"
        return ""

    @cached_property
    def _refused_chunks(self) -> str:
        """What is wrong with the densities of chunks, tried with zeros; empty for single actions."""
        num_rows, horizon = 2, self._spec.horizon
        if horizon == 1:
            return ""
        if num_rows == horizon:  # rows and actions must not be mistaken for each other
            num_rows += 1
        inputs = {key: np.repeat(value, num_rows, axis=0) for key, value in zero_inputs(self._spec).items()}
        self._set_training(False)
        try:
            with torch.no_grad(), self._random_numbers(_FIXED_SEED):
                features = self.features(self._tensors(inputs))
                actions = self._model.sample(features, deterministic=True).actions
                self._model.evaluate(features, actions)
        except _MODEL_ERRORS as error:
            what = f"{_DENSITY} of {self._config.model_class} does not accept chunks [B, {horizon}, A]"
            return f"{what} of policy.horizon={horizon} ({one_line(error)})"
        return ""

    def warmup(self) -> None:
        """Move to the device where it acts. A learner does not call this."""
        self.to(find_device(self._config.device, setting="policy.device"))
        super().warmup()

    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk:
        inputs = self._tensors(check_inputs(observations, self._spec))
        self._set_training(False)
        with torch.no_grad(), self._random_numbers(_FIXED_SEED if context.deterministic else context.seed):
            features = self.features(inputs)
            sampled = self._model.sample(features, deterministic=context.deterministic)
            extras = {} if context.deterministic else self._extras(features, sampled)
            normalized = self._normalized(sampled.actions).clamp(-1.0, 1.0)
        return self._chunk(normalized, inputs, **extras)

    def _extras(self, features: Any, sampled: Sampled) -> dict[str, Tensor]:
        return {}

    # ---- what all of them share in torch

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Any:
        normalize = _unchanged if self._is_raw else self._normalizer
        return nest(self._spec, observations, normalize=normalize)

    def _set_training(self, training: bool) -> None:
        if self._model.training != training:
            self._model.train(training)

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        if not self._is_raw:
            super().fit_normalizer(columns)

    def _normalized(self, actions: Tensor) -> Tensor:
        """The model's actions in the units of `_chunk`."""
        if self._config.action_units == "normalized":
            return actions
        center, scale = (torch.tensor(values, device=actions.device) for values in (self._center, self._scale))
        return (actions - center) / scale

    def _in_model_units(self, actions: Tensor) -> Tensor:
        """Normalized actions in the model's units."""
        if self._config.action_units == "normalized":
            return actions
        center, scale = (torch.tensor(values, device=actions.device) for values in (self._center, self._scale))
        return actions * scale + center

    @contextmanager
    def _random_numbers(self, seed: int | None) -> Iterator[None]:
        """Seed torch's own generators, which the model may use, and restore them. None: leave them as they are."""
        if seed is None:
            yield
            return
        is_gpu = self._device.type == "cuda"
        with torch.random.fork_rng(devices=[self._device] if is_gpu else []):
            torch.default_generator.manual_seed(seed)
            if is_gpu:
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(seed)
            yield


class _TrainableVla(UserModelPolicy):
    """See the TrainablePolicy contract."""

    def sample(self, features: Any, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        raise UsageError(
            "policy 'vla' gives its observations to the model only, but this algorithm has networks of its own that need "
            "them. Use algorithm 'ppo', 'imitation', 'hg_dagger' or 'hi_ors'"
        )

    def imitation_loss(
        self, features: Any, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """The model's own loss, or without one the mean negative log-density."""
        num_rows, horizon = len(features), self._spec.horizon
        actions = self._in_model_units(actions.reshape(num_rows, horizon, -1))
        mask = torch.ones(actions.shape[:2], dtype=torch.bool, device=actions.device) if mask is None else mask
        mask = mask.reshape(*actions.shape[:2], -1).all(-1)  # the model knows no masks of axes
        actions = torch.where(mask[..., None], actions, 0.0)  # they may be NaN
        self._set_training(not self._is_frozen(MODEL))
        with self._random_numbers(_draw_seed(generator)):
            if not self._class.missing(_LOSS):
                return self._model.imitation_loss(features, actions, mask, weights=self._config.loss_weights)
            log_prob, _, _ = self._model.evaluate(features, actions[:, 0] if horizon == 1 else actions)
        known = mask if log_prob.ndim == 2 else mask.all(1)  # the density of a chunk needs all of it
        return -torch.where(known, log_prob, 0.0).sum() / mask.sum().clamp(min=1)


class _ValuedVla(_TrainableVla):
    """See the ValuedPolicy contract."""

    @property
    def num_drawn(self) -> int:
        return self._spec.horizon * self._spec.action.shape[0]

    def value(self, features: Any) -> Tensor:
        self._set_training(False)
        return self._model.value(features)

    def evaluate_actions(self, features: Any, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._set_training(False)  # the density of the same network that acted
        num_rows, horizon = len(features), self._spec.horizon
        actions = drawn if horizon == 1 else drawn.view(num_rows, horizon, -1)
        log_prob, entropy, value = self._model.evaluate(features, actions)
        method = _DENSITY
        if value is None:
            method, value = _VALUE, self._model.value(features)
        if torch.is_grad_enabled() and not (log_prob.requires_grad and value.requires_grad):
            what, method = ("value", method) if log_prob.requires_grad else ("log-density", _DENSITY)
            raise UsageError(
                f"the {what} of {self._config.model_class}.{method} has no gradient, so it would never be learned. Remove "
                "`torch.no_grad` or `detach`"
            )
        if horizon > 1 and entropy.ndim == 1:
            entropy = (entropy / horizon)[:, None].expand(-1, horizon)
        return self._of_each_action(log_prob), entropy, value

    def _of_each_action(self, log_prob: Tensor) -> Tensor:
        """[B, H] of chunks. The density of a whole chunk counts as that of its first action, which is always executed."""
        if self._spec.horizon == 1 or log_prob.ndim == 2:
            return log_prob
        return functional.pad(log_prob[:, None], (0, self._spec.horizon - 1))

    def _extras(self, features: Any, sampled: Sampled) -> dict[str, Tensor]:
        if self._refused_chunks:  # PPO refuses it too; other algorithms need no density
            return {}
        drawn, log_prob, value = sampled.actions.flatten(1), sampled.log_prob, sampled.value
        if log_prob is None or value is None:
            log_prob, _, value = self.evaluate_actions(features, drawn)
        return {"drawn": drawn, "log_prob": self._of_each_action(log_prob), "value": value}


def _can_imitate(model: ModelClass) -> bool:
    return not (model.missing(_LOSS) and model.missing(_DENSITY))


def _unchanged(key: str, values: Tensor) -> Tensor:
    return values


def _draw_seed(generator: Generator | None) -> int | None:
    if generator is None:
        return None
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
