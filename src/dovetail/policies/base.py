"""Base class of policies made of torch networks: observations to features, action limits, weights in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn

from dovetail.core.bfloat16 import all_finite
from dovetail.core.disk import sha256
from dovetail.core.errors import SpecMismatch, StoreError, UsageError, did_you_mean
from dovetail.core.frozen_base import base_reference, check_base, referenced_base
from dovetail.core.images import resize_images
from dovetail.core.specs import ArraySpec, PolicySpec, RobotSpec
from dovetail.core.tensor_files import tensor_blocks
from dovetail.core.types import ActContext, ActionChunk, Array, WeightSnapshot
from dovetail.policies.arrays import fill_module, module_digest, stage_module, to_numpy
from dovetail.policies.components import (
    NORMALIZER,
    ComponentConfig,
    ObservationStatistics,
    check_component_names,
)
from dovetail.policies.images.encoders import EncoderConfig, FrozenEncoder, depth_channels, make_encoder
from dovetail.policies.inputs import zero_inputs
from dovetail.policies.normalizer import Normalizer
from dovetail.policies.own_networks import build_network, load_network_class
from dovetail.policies.random_draws import normal
from dovetail.policies.relative_targets import RelativeTargets

__all__ = ["AxisMasks", "NetworkPolicy", "policy_spec"]


class AxisMasks(Protocol):
    """For a policy that several kinds of arms share: which action axes the arm of each row has."""

    def masks(self, features: Tensor) -> Tensor:
        """bool [B, A]"""

    def randn(self, features: Tensor, shape: tuple[int, ...], generator: Generator | None) -> Tensor: ...


class NetworkPolicy(ABC):
    """Common half of the Policy and TrainablePolicy contracts.

    A subclass provides its networks as `components`. Its `act` computes normalized actions from `features`, and `_chunk`
    converts them to the robot's units. A subclass that overrides `load` overrides `stage` too.
    """

    axis_masks: AxisMasks | None = None  # set by a policy that wraps this one for several arms
    replaceable: ClassVar[frozenset[str]] = frozenset()  # components that may be of a class of the user
    activated: ClassVar[frozenset[str]] = frozenset()  # components whose activation can be chosen

    def __init__(
        self,
        spec: PolicySpec,
        components: Mapping[str, ComponentConfig],
        *,
        encoder: EncoderConfig | None = None,
        relative: RelativeTargets | None = None,
    ) -> None:
        low, high = spec.action.bounds
        self._spec, self._component_configs = spec, components
        self._check_components()
        self._encoder_config = encoder or EncoderConfig()
        self._images = tuple(key for key, s in spec.observation.items() if s.is_picture)
        self._check_depth()
        is_frozen = self._images and self._encoder_config.type == "frozen"
        self._frozen_encoder = FrozenEncoder(self._encoder_config) if is_frozen else None
        self._feature_specs: dict[str, ArraySpec] = {}
        if self._frozen_encoder is not None:
            self._feature_specs = {key: self._frozen_encoder.spec(spec.observation[key]) for key in self._images}
        self._encoder = nn.ModuleDict()  # the trainable part
        self._center, self._scale = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
        self._relative = relative
        if relative is not None:
            self._center = np.where(relative.mask, np.float32(0.0), self._center)
            self._scale = np.where(relative.mask, relative.reach, self._scale)
        self._normalizer = Normalizer({key: s.shape[0] for key, s in spec.observation.items() if not s.is_picture})
        self._limits: dict[torch.device, Tensor] = {}
        self._version = 0
        self._bases: dict[str, str] = {}  # sha256 of each frozen component that came from a checkpoint
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
        """Compute on this device from now on. `act`, `weights` and `load` still use numpy."""
        for module in self.components.values():
            module.to(device)
        if self._frozen_encoder is not None:
            self._frozen_encoder.to(device)
        self._device = device
        return self

    def warmup(self) -> None:
        inputs = zero_inputs(self._spec)
        chunk = self.act(inputs, ActContext(deterministic=True))
        if self._spec.guidable:
            self.act(inputs, ActContext(deterministic=True, prefix=chunk.actions, delay=1))

    def reset(self) -> None:  # noqa: B027 - most policies have no state
        """Start a new episode. Nothing to do: the policy has no state between calls."""

    # ---- observations to features, actions to [-1, 1] and back

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        """Fit it unless it is frozen: networks trained with other statistics need those."""
        if not self._is_frozen(NORMALIZER):
            self._normalizer.fit(columns)

    def set_normalization(self, statistics: Mapping[str, ObservationStatistics]) -> None:
        """Normalize by statistics that the config has. Raise UsageError if they do not fit the observations."""
        for key, known in statistics.items():
            size = len(self._normalizer.mean.get(key, ()))
            if not len(known.mean) == len(known.std) == size:
                what = f"{size} values" if size else "no such low-dimensional observation"
                raise UsageError(
                    f"policy.normalization has {len(known.mean)} means and {len(known.std)} stds of '{key}', but policy "
                    f"'{self._spec.name}' has {what}"
                )
            self._normalizer.set(key, mean=known.mean, std=known.std)

    def _check_components(self) -> None:
        for name, config in self._component_configs.items():
            for setting, given, names in (
                ("model_class", config.model_class, self.replaceable),
                ("activation", config.activation, self.activated),
            ):
                if given is not None and name not in names:
                    which = f"only for {', '.join(sorted(names))}" if names else "not for this policy"
                    raise UsageError(
                        f"policy.components.{name}.{setting} does not fit policy '{self._spec.name}': it is {which}"
                    )

    def _activation(self, name: str) -> str:
        config = self._component_configs.get(name)
        return "tanh" if config is None or config.activation is None else config.activation

    def _network(self, name: str, make: Callable[[], nn.Module], **sizes: int) -> nn.Module:
        """The network of a component: of the user's class if the config names one, or else what `make` makes."""
        config = self._component_configs.get(name)
        if config is None or config.model_class is None:
            return make()
        setting = f"policy.components.{name}"
        kind = load_network_class(config.model_class, setting=f"{setting}.model_class")
        options = config.model_options
        return build_network(kind, options, sizes, name=config.model_class, setting=f"{setting}.model_config")

    def _make_image_encoders(self) -> None:
        """Create the trainable encoder of each camera. Their weights come from torch's global generator."""
        for key in self._images:
            if self._camera(key) not in self._encoder:
                seen = self._feature_specs.get(key, self._spec.observation[key])
                self._encoder[self._camera(key)] = make_encoder(self._encoder_config, seen)

    def _check_depth(self) -> None:
        for key in self._images:
            if self._spec.observation[key].is_depth and self._encoder_config.type == "frozen":
                raise SpecMismatch(
                    f"policy '{self._spec.name}' has depth image '{key}' among its inputs, but encoder type 'frozen' reads "
                    "color only. Set policy.encoder.type to cnn or resnet, or remove it from policy.inputs"
                )

    @property
    def encoder(self) -> nn.ModuleDict:
        return self._encoder

    @property
    def num_features(self) -> int:
        return sum(
            (self._encoder_config.features if spec.is_picture else spec.shape[0]) * self._spec.history.get(key, 1)
            for key, spec in self._spec.observation.items()
        )

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Tensor:
        return torch.cat(list(self._features_by_key(observations, encoder or self._encoder).values()), dim=1)

    def _features_by_key(self, observations: Mapping[str, Tensor], encoder: nn.ModuleDict) -> dict[str, Tensor]:
        """[B, F] for each key."""
        features: dict[str, Tensor] = {}
        for key in self._spec.observation:
            values = observations[key]
            is_image = key in self._images
            of_key = self._encode_images(key, values, encoder) if is_image else self._normalizer(key, values)
            if key in self._spec.history:  # zeros after normalization, where ticks are missing
                of_key = torch.where(observations[f"{key}/mask"][..., None], of_key, 0.0)
            features[key] = of_key.flatten(1)
        return features

    def _encode_images(self, key: str, values: Tensor, encoder: nn.ModuleDict) -> Tensor:
        """Pixels or cached features [B, (h,) H, W, C] to features [B, (h,) F]."""
        frames = values.flatten(0, -4)
        if self._spec.observation[key].is_depth:
            frames = depth_channels(frames, self._encoder_config.depth_range_m)
        if self._frozen_encoder is not None and frames.dtype == torch.uint8:
            frames = self._frozen_encoder(frames)
        features: Tensor = encoder[self._camera(key)](frames)
        return features.view(*values.shape[:-3], -1)

    def _camera(self, key: str) -> str:
        """The module name of a camera's encoder. Module names cannot contain dots."""
        if not self._encoder_config.shared:
            return "camera_" + key.replace(".", "_")
        return "depth" if self._spec.observation[key].is_depth else "camera"

    def _tensors(self, observations: Mapping[str, Array]) -> dict[str, Tensor]:
        # copies, because torch warns of read-only arrays
        return {key: torch.tensor(value, device=self._device) for key, value in observations.items()}

    def normalize_actions(self, actions: Tensor, observations: Mapping[str, Tensor] | None = None) -> Tensor:
        device = actions.device
        if device not in self._limits:
            limits = torch.stack((torch.from_numpy(self._center), torch.from_numpy(self._scale)))
            self._limits[device] = limits.to(device)
        center, scale = self._limits[device]
        if self._relative is not None:
            if observations is None:
                raise UsageError("policy.relative_parts needs the observations of the actions to normalize")
            origin = self._relative.origin(observations)
            actions = actions - origin.view(len(origin), *(1,) * (actions.ndim - 2), -1)
        normalized: Tensor = ((actions - center) / scale).clamp(-1.0, 1.0)
        return normalized

    def _chunk(
        self, normalized: Tensor, inputs: Mapping[str, Tensor] | None = None, **extras: Tensor
    ) -> ActionChunk:
        """Convert normalized actions [B, H, A] to the robot's units. Relative ones need the policy's inputs."""
        actions = (normalized.cpu().numpy() * self._scale + self._center).astype(np.float32)
        if self._relative is not None and inputs is not None:
            low, high = self._spec.action.bounds
            actions = np.clip(actions + self._relative.origin(inputs)[:, None].cpu().numpy(), low, high)
        return ActionChunk(
            actions=actions,
            observed_ns=0,
            policy_version=self._version,
            extras={name: value.cpu().numpy() for name, value in extras.items()},
        )

    def _axis_mask(self, features: Tensor) -> Tensor | None:
        """Which axes the arm of each row has, [B, A]. None: all of them."""
        return None if self.axis_masks is None else self.axis_masks.masks(features)

    def _randn(self, features: Tensor, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        if self.axis_masks is None:
            return normal(shape, generator=generator, device=features.device)
        return self.axis_masks.randn(features, shape, generator)

    # ---- CachesFeatures

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        return self._feature_specs

    @property
    def feature_digest(self) -> str:
        return "" if self._frozen_encoder is None else self._frozen_encoder.digest

    def encode(self, key: str, frames: Array) -> Array:
        assert self._frozen_encoder is not None, "this policy has no frozen encoder"
        frames = resize_images(frames, self._spec.observation[key])
        return to_numpy(self._frozen_encoder(torch.tensor(frames, device=self._device)))

    # ---- weights

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        modules = components or self.components
        return {
            **{
                name: base_reference(self._bases[name]) if name in self._bases else _arrays(module)
                for name, module in modules.items()
            },
            NORMALIZER: self._normalizer.to_arrays(),
        }

    def component_arrays(self, name: str) -> Mapping[str, Array]:
        """The arrays of one component, also of a frozen one, which `weights` refers to by its hash."""
        return self._normalizer.to_arrays() if name == NORMALIZER else _arrays(self.components[name])

    @property
    def component_configs(self) -> Mapping[str, ComponentConfig]:
        """The components that start from a checkpoint or are frozen."""
        return self._component_configs

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None:
        """Load the checkpoints that the config names, then freeze components.

        `read(name, checkpoint)` returns the arrays of one component. Call this before training starts.
        """
        configs = self._component_configs
        check_component_names(configs, [*self.components, NORMALIZER], policy=self._spec.name)
        expected = self._expected_shapes()
        sources = {name: config.checkpoint for name, config in configs.items() if config.checkpoint is not None}
        found: dict[str, Mapping[str, Array]] = {}
        for name, source in sources.items():
            arrays = read(name, source)
            if name == NORMALIZER:  # a statistics file may contain keys that this policy does not use
                arrays = {key: arrays[key] for key in arrays.keys() & expected[name].keys()}
            misfit = f"{source} does not fit policy '{self._spec.name}': "
            _check_fit(arrays, name, expected[name], misfit=misfit)
            found[name] = arrays
        for name, arrays in found.items():  # after all checks, so that an error changes nothing
            self._set_component(name, arrays)
        for name, module in self.components.items():
            if self._is_frozen(name):
                module.requires_grad_(False).eval()  # eval: running statistics must not change either
                if name in sources:
                    self._bases[name] = module_digest(module)

    def load(self, snapshot: WeightSnapshot) -> None:
        self._check_snapshot(snapshot)
        for name in self._expected_shapes().keys() - self._bases.keys():
            self._set_component(name, snapshot.components[name])
        self._version = snapshot.version

    def stage(self, snapshot: WeightSnapshot) -> Callable[[], None]:
        """See StagesWeights. Frozen components stay where they are."""
        self._check_snapshot(snapshot)
        trained = [
            stage_module(module, snapshot.components[name], self._device)
            for name, module in self.components.items()
            if name not in self._bases
        ]

        def use() -> None:
            for use_component in trained:
                use_component()
            self._normalizer.load_arrays(snapshot.components[NORMALIZER])
            self._version = snapshot.version

        return use

    def _check_snapshot(self, snapshot: WeightSnapshot) -> None:
        """Raise StoreError if it does not fit."""
        misfit = f"weights version {snapshot.version} do not fit policy '{self._spec.name}': "
        expected = self._expected_shapes()
        for name, shapes in expected.items():
            if name not in snapshot.components:
                raise StoreError(f"{misfit}component '{name}' is missing")
            arrays = snapshot.components[name]
            if (digest := referenced_base(arrays)) is not None:
                check_base(digest, self._bases.get(name), component=name, misfit=misfit)
                continue
            _check_fit(arrays, name, shapes, misfit=misfit)
            if name in self._bases:  # published before versions referred to frozen components
                check_base(sha256(tensor_blocks(arrays)), self._bases[name], component=name, misfit=misfit)

    def _is_frozen(self, name: str) -> bool:
        return name in self._component_configs and self._component_configs[name].is_frozen(name)

    def _expected_shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        states = {name: module.state_dict() for name, module in self.components.items()}
        return {
            name: {key: tuple(value.shape) for key, value in state.items()}
            for name, state in {**states, NORMALIZER: self._normalizer.to_arrays()}.items()
        }

    def _set_component(self, name: str, arrays: Mapping[str, Array]) -> None:
        if name == NORMALIZER:
            self._normalizer.load_arrays(arrays)
        else:
            fill_module(self.components[name], arrays)


def _arrays(module: nn.Module) -> dict[str, Array]:
    return {key: to_numpy(value) for key, value in module.state_dict().items()}


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
    """The spec of a policy for this robot. Raise SpecMismatch if the robot lacks an input or action limits."""

    def is_usable(spec: ArraySpec) -> bool:
        return _is_low_dim(spec) or (images and spec.is_picture)

    keys = inputs or tuple(key for key, spec in robot.observation.items() if _is_low_dim(spec))
    if not keys:
        raise SpecMismatch(
            f"policy '{name}' has no input: robot '{robot.name}' has no low-dimensional observation"
            + (". Name its images in policy.inputs" if images else "")
        )
    for key in keys:
        if key not in robot.observation or not is_usable(robot.observation[key]):
            raise SpecMismatch(
                f"policy '{name}' needs input '{key}', but robot '{robot.name}' has no such low-dimensional "
                f"observation{' or image' if images else ''}."
                + did_you_mean(key, [k for k, spec in robot.observation.items() if is_usable(spec)])
            )
    for key in history:
        if key not in keys:
            raise SpecMismatch(
                f"policy '{name}' has history of '{key}', which is not among its inputs." + did_you_mean(key, keys)
            )
    if not robot.action.low or not all(np.isfinite((*robot.action.low, *robot.action.high))):
        raise SpecMismatch(
            f"policy '{name}' needs a bounded action, but robot '{robot.name}' has no action limits"
        )
    return PolicySpec(
        name=name,
        observation={key: robot.observation[key] for key in keys},
        action=robot.action,
        action_kind=robot.action_kind,
        parts=robot.parts,
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
    for problem, one, other in (("lacks", expected, arrays), ("has unexpected", arrays, expected)):
        if names := sorted(one.keys() - other.keys()):
            raise StoreError(f"{misfit}component '{component}' {problem} {', '.join(names[:3])}")
    for name, value in arrays.items():
        if value.shape != expected[name]:
            raise StoreError(f"{misfit}{component}/{name} is {value.shape}, should be {expected[name]}")
        if not all_finite(value):
            raise StoreError(f"{misfit}{component}/{name} holds non-finite numbers; not loaded")
