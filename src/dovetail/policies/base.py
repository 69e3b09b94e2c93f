"""What policies on torch networks share: what they look at, the robot's limits, and weights in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import SpecMismatch, StoreError, did_you_mean
from dovetail.core.prompts import encode_prompt
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.arrays import fill_module, to_numpy
from dovetail.policies.random_draws import normal
from dovetail.policies.images.encoders import EncoderConfig, FrozenEncoder, make_encoder
from dovetail.policies.normalizer import Normalizer
from dovetail.policies.components import NORMALIZER, ComponentConfig, check_component_names, freeze, is_frozen

__all__ = ["Axes", "NetworkPolicy", "policy_spec"]


class Axes(Protocol):
    """Where arms of different sizes share a policy: which axes of an action a row's arm really has."""

    def real(self, features: Tensor) -> Tensor:
        """bool [B, A]"""

    def randn(self, features: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor: ...


class NetworkPolicy(ABC):
    """Half of the Policy and TrainablePolicy contracts, for a policy that gives its networks as `components`. A subclass
    looks through `features`, and answers by `_chunk` of normalised actions."""

    axes: Axes | None = None  # set by whoever wraps it for several arms; None: all of them are real

    def __init__(
        self, spec: PolicySpec, parts: Mapping[str, ComponentConfig], *, encoder: EncoderConfig | None = None
    ) -> None:
        low, high = spec.action.bounds
        self._spec, self._component_configs = spec, parts
        self._eyes = encoder or EncoderConfig()
        self._images = tuple(key for key, s in spec.observation.items() if s.is_image)
        self._frozen = FrozenEncoder(self._eyes) if self._images and self._eyes.type == "frozen" else None
        self._caches: dict[str, ArraySpec] = {}
        if self._frozen is not None:
            self._caches = {key: self._frozen.spec(spec.observation[key]) for key in self._images}
        self._encoder = nn.ModuleDict()  # of what is seen, as far as that is learned
        self._center, self._scale = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
        self._normalizer = Normalizer({key: s.shape[0] for key, s in spec.observation.items() if not s.is_image})
        self._limits: dict[torch.device, Tensor] = {}
        self._version = 0
        self._device = torch.device("cpu")

    @property
    @abstractmethod
    def components(self) -> Mapping[str, nn.Module]: ...

    @abstractmethod
    def act(self, observations: Mapping[str, Array], context: ActContext) -> ActionChunk: ...

    @property
    def spec(self) -> PolicySpec:
        return self._spec

    @property
    def device(self) -> torch.device:
        return self._device

    def to(self, device: torch.device) -> Self:
        """Compute there from now on. What goes in and out of `act`, `weights` and `load` stays numpy."""
        for module in self.components.values():
            module.to(device)
        if self._frozen is not None:
            self._frozen.to(device)
        self._device = device
        return self

    def warmup(self) -> None:
        batch: dict[str, Array] = {}
        for key, spec in self._spec.observation.items():
            num = self._spec.history.get(key)
            batch[key] = np.zeros((1, *((num,) if num else ()), *spec.shape), spec.dtype)
            if num:
                batch[f"{key}/mask"] = np.ones((1, num), np.bool_)
        if self._spec.prompted:
            batch["prompt"] = encode_prompt("")[None]
        chunk = self.act(batch, ActContext(deterministic=True))
        if self._spec.guidable:
            self.act(batch, ActContext(deterministic=True, prefix=chunk.actions, delay=1))

    def reset(self) -> None:  # noqa: B027 - a policy that remembers something says so itself
        """Nothing is remembered between episodes."""

    # ---- from observations to features, from actions to numbers around 0 and back

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        """Not where it is frozen: networks that were trained with other statistics would see another world."""
        if not self._is_frozen(NORMALIZER):
            self._normalizer.fit(columns)

    def _open_eyes(self) -> None:
        """Make the encoders of all cameras; they take from torch's stream of chance."""
        for key in self._images:
            seen = self._caches.get(key, self._spec.observation[key])
            if self._camera(key) not in self._encoder:
                self._encoder[self._camera(key)] = make_encoder(self._eyes, seen)

    @property
    def encoder(self) -> nn.ModuleDict:
        return self._encoder

    @property
    def num_features(self) -> int:
        return sum(
            (self._eyes.features if spec.is_image else spec.shape[0]) * self._spec.history.get(key, 1)
            for key, spec in self._spec.observation.items()
        )

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        return torch.cat(list(self._pieces(observations, encoder or self._encoder).values()), dim=1)

    def _pieces(self, observations: Mapping[str, Tensor], encoder: nn.ModuleDict) -> dict[str, Tensor]:
        """What was seen of each key, [B, F]."""
        pieces: dict[str, Tensor] = {}
        for key in self._spec.observation:
            values = observations[key]
            seen = self._look(key, values, encoder) if key in self._images else self._normalizer(key, values)
            if key in self._spec.history:
                # padding is nothing, not a zero reading
                seen = torch.where(observations[f"{key}/mask"][..., None], seen, 0.0)
            pieces[key] = seen.flatten(1)
        return pieces

    def _look(self, key: str, values: Tensor, encoder: nn.ModuleDict) -> Tensor:
        """Pixels, or what a frozen encoder made of them, [B, (h,) H, W, C], to features [B, (h,) F]."""
        frames = values.flatten(0, -4)
        if self._frozen is not None and frames.dtype == torch.uint8:
            frames = self._frozen(frames)
        features: Tensor = encoder[self._camera(key)](frames)
        return features.view(*values.shape[:-3], -1)

    def _camera(self, key: str) -> str:
        """The name of a camera's encoder; torch has its own use for dots."""
        return "camera" if self._eyes.shared else "camera_" + key.replace(".", "_")

    # ---- what a frozen encoder gives may be kept instead of the pixels

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        return self._caches

    @property
    def feature_digest(self) -> str:
        return "" if self._frozen is None else self._frozen.digest

    def encode(self, key: str, frames: Array) -> Array:
        assert self._frozen is not None, "there is nothing to be kept"
        return to_numpy(self._frozen(torch.tensor(frames, device=self._device)))

    def normalize_actions(self, actions: Tensor) -> Tensor:
        device = actions.device
        if device not in self._limits:  # copied to a GPU once
            self._limits[device] = torch.stack((torch.from_numpy(self._center), torch.from_numpy(self._scale))).to(
                device
            )
        center, scale = self._limits[device]
        normalized: Tensor = ((actions - center) / scale).clamp(-1.0, 1.0)
        return normalized

    def _chunk(self, normalized: Tensor) -> ActionChunk:
        """Normalised actions [B, H, A] in the robot's own units."""
        actions = (normalized.cpu().numpy() * self._scale + self._center).astype(np.float32)
        return ActionChunk(actions=actions, observed_ns=0, policy_version=self._version)

    def _real(self, features: Tensor) -> Tensor | None:
        """Which axes are real, [B, A]; None: all of them."""
        return None if self.axes is None else self.axes.real(features)

    def _randn(self, features: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        if self.axes is None:
            return normal(shape, generator=generator, device=features.device)
        return self.axes.randn(features, shape, generator)

    # ---- weights

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        modules = components or self.components
        return {
            **{name: {k: to_numpy(v) for k, v in m.state_dict().items()} for name, m in modules.items()},
            NORMALIZER: self._normalizer.to_arrays(),
        }

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None:
        """Give each part what it should start from, and freeze those that should stay so. `read(name, checkpoint)` gives
        the arrays of one part; whoever built this policy knows how, and calls this before anything learns."""
        check_component_names(self._component_configs, [*self.components, NORMALIZER], policy=self._spec.name)
        expected = self._expected()
        sources = {name: part.checkpoint for name, part in self._component_configs.items() if part.checkpoint is not None}
        found: dict[str, Mapping[str, Array]] = {}
        for name, source in sources.items():
            arrays = read(name, source)
            if name == NORMALIZER:  # old statistics tell of more than one policy looks at
                arrays = {key: arrays[key] for key in arrays.keys() & expected[name].keys()}
            misfit = f"{source} does not fit policy '{self._spec.name}': "
            _check_fit(arrays, name, expected[name], misfit=misfit)
            found[name] = arrays
        for name, arrays in found.items():  # all of it fits, so nothing is left half loaded
            self._take(name, arrays)
        for name, module in self.components.items():
            if self._is_frozen(name):
                freeze(module)

    @property
    def component_configs(self) -> Mapping[str, ComponentConfig]:
        """What the config says of the components that are not simply made anew and trained."""
        return self._component_configs

    def _is_frozen(self, name: str) -> bool:
        return name in self._component_configs and is_frozen(name, self._component_configs[name])

    def _expected(self) -> dict[str, dict[str, tuple[int, ...]]]:
        states = {name: module.state_dict() for name, module in self.components.items()}
        return {
            name: {key: tuple(value.shape) for key, value in state.items()}
            for name, state in {**states, NORMALIZER: self._normalizer.to_arrays()}.items()
        }

    def _take(self, name: str, arrays: Mapping[str, Array]) -> None:
        if name == NORMALIZER:
            self._normalizer.load_arrays(arrays)
        else:
            fill_module(self.components[name], arrays)

    def load(self, snapshot: WeightSnapshot) -> None:
        misfit = f"weights version {snapshot.version} do not fit policy '{self._spec.name}': "
        expected = self._expected()
        for name, shapes in expected.items():
            if name not in snapshot.components:
                raise StoreError(f"{misfit}there is no '{name}' among them")
            _check_fit(snapshot.components[name], name, shapes, misfit=misfit)
        for name in expected:  # all of it fits, so nothing is left half loaded
            self._take(name, snapshot.components[name])
        self._version = snapshot.version


def policy_spec(
    name: str,
    robot: RobotSpec,
    *,
    inputs: tuple[str, ...],
    history: Mapping[str, int],
    images: bool = False,
    horizon: int = 1,
    guidable: bool = False,
    prompted: bool = False,
) -> PolicySpec:
    """What a policy looks at and gives; refused where the robot does not give that, or says no limits."""

    def usable(spec: ArraySpec) -> bool:
        return _is_low_dim(spec) or (images and spec.is_image)

    keys = inputs or tuple(key for key, spec in robot.observation.items() if _is_low_dim(spec))
    if not keys:
        raise SpecMismatch(
            f"policy '{name}' has nothing to look at: robot '{robot.name}' gives no low-dimensional observation"
            + (", so name images in policy.inputs" if images else "")
        )
    for key in keys:
        if key not in robot.observation or not usable(robot.observation[key]):
            raise SpecMismatch(
                f"policy '{name}' wants input '{key}', but robot '{robot.name}' gives no such low-dimensional "
                f"observation{' or image' if images else ''}."
                + did_you_mean(key, [k for k, spec in robot.observation.items() if usable(spec)])
            )
    for key in history:
        if key not in keys:
            raise SpecMismatch(
                f"policy '{name}' wants history of '{key}', which it does not see." + did_you_mean(key, keys)
            )
    if not robot.action.low or not all(np.isfinite((*robot.action.low, *robot.action.high))):
        raise SpecMismatch(f"policy '{name}' needs a bounded action, but robot '{robot.name}' gives no limits")
    return PolicySpec(
        name=name,
        observation={key: robot.observation[key] for key in keys},
        action=robot.action,
        action_kind=robot.action_kind,
        horizon=horizon,
        history={key: num for key, num in history.items() if num > 1},
        guidable=guidable,
        prompted=prompted,
    )


def _is_low_dim(spec: ArraySpec) -> bool:
    return spec.dtype == "float32" and len(spec.shape) == 1


def _check_fit(
    arrays: Mapping[str, Array], component: str, expected: Mapping[str, tuple[int, ...]], *, misfit: str
) -> None:
    if arrays.keys() != expected.keys():
        names = sorted(arrays.keys() ^ expected.keys())
        raise StoreError(f"{misfit}of '{component}', {', '.join(names[:3])} is only on one side")
    for name, value in arrays.items():
        if value.shape != expected[name]:
            raise StoreError(f"{misfit}{component}/{name} is {value.shape}, should be {expected[name]}")
        if not np.isfinite(value).all():
            raise StoreError(f"{misfit}{component}/{name} holds non-finite numbers; not loaded")
