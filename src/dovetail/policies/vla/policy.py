"""Published weights act on a robot and learn there. All families share this policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from tensordict import TensorDict
from torch import Generator, Tensor, nn
from torch.nn import functional

from dovetail.core.errors import UsageError
from dovetail.core.images import resize_images
from dovetail.core.specs import ArraySpec
from dovetail.core.types import ActContext, Array, WeightSnapshot
from dovetail.policies.arrays import to_numpy
from dovetail.policies.components import NORMALIZER
from dovetail.policies.random_draws import seeded_generator
from dovetail.policies.steering import SteeringActor
from dovetail.policies.trainable import ADVANTAGE
from dovetail.policies.vla.acting import ActingVla
from dovetail.policies.vla.checkpoints.adapters import write_adapter
from dovetail.policies.vla.checkpoints.lerobot_writer import write_lerobot
from dovetail.policies.vla.family import FlowNetwork
from dovetail.policies.vla.fitted_statistics import compute_statistics, from_arrays, to_arrays
from dovetail.policies.vla.lora import Lora
from dovetail.policies.vla.networks.transformers import masked_mean
from dovetail.policies.vla.sampler import Inputs
from dovetail.policies.vla.trained_weights import TrainedWeights
from dovetail.policies.vla.training import flow_matching_loss

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["VlaPolicy"]

STEERING = "steering"  # the component that chooses the noise
_ACTIONS = "action"  # among the columns of the demonstrations


class VlaPolicy(ActingVla):
    """See the Policy and TrainablePolicy contracts. A subclass names the family and its settings.

    `features` are a TensorDict of the network's inputs. `policy.train` says which weights learn. A learner's parameters are
    float32; where the policy acts, they have `policy.precision`.
    """

    fits_actions: ClassVar[bool] = True

    @property
    def components(self) -> Mapping[str, nn.Module]:
        if "network" not in self.__dict__:
            self.__dict__["network"] = self._load_network(torch.float32)
        network = self.network
        if network.action_out.weight.dtype != torch.float32:  # it acted before
            network.float()
            self.__dict__.pop("_sampler", None)
        self._trained.let_learn()
        network.run_layer.recompute = self._config.recompute_layers
        network.run_layer.is_compiled = self._config.compile_layers
        return self._trained.components

    def _acting_network(self) -> FlowNetwork:
        """With the adapters, which change nothing yet: a CUDA graph computes only what it captured."""
        return self._trained.network

    @property
    def lora(self) -> Lora | None:
        return self._trained.lora

    @cached_property
    def _trained(self) -> TrainedWeights:
        return TrainedWeights(
            self.network, self._setup.checkpoint, self._config, seed=self._seed, added=self._added
        )

    @property
    def _added(self) -> dict[str, nn.Module]:
        """Networks beside the published one."""
        return {} if self.steering is None else {STEERING: self.steering}

    @property
    def device(self) -> torch.device:
        return self._device

    def to(self, device: torch.device) -> Self:
        """Compute on this device from now on."""
        if device != self._device and "network" in self.__dict__:
            self.network.to(device)
            self.__dict__.pop("_sampler", None)
        self.__dict__["_device"] = device
        for module in self._added.values():
            module.to(device)
        return self

    def check_shard(self) -> None:
        if self._config.compile_layers:
            raise UsageError("learner.shard does not support compiled layers. Set policy.compile_layers=false")

    def shard(self, mesh: DeviceMesh) -> None:
        """See ShardsItself."""
        self.network.shard(mesh)

    # ---- observations and actions

    @property
    def encoder(self) -> nn.ModuleDict:
        """Empty: the policy's own loss trains all of the network."""
        return nn.ModuleDict()

    @property
    def num_features(self) -> int:
        sizes = self._setup.checkpoint.sizes
        return sizes.text.width + sizes.state_size

    def features(self, observations: Mapping[str, Tensor], *, encoder: nn.ModuleDict | None = None) -> Any:
        """The inputs of the network, [B]. Images may be features that the replay cached."""
        arrays = {key: value.cpu().numpy() for key, value in observations.items()}
        state = self._setup.state_axes.read(arrays)
        empty = torch.empty(len(state), 0, device=self._device)
        inputs = self._inputs(arrays, state, empty, advantage=arrays.get(ADVANTAGE)).without_padding()
        return TensorDict(inputs._asdict(), batch_size=[len(state)], device=self._device)

    @property
    def takes_advantage(self) -> bool:
        """See AdvantageConditioned. The indicator is text in the prompt."""
        return self._config.advantage_input

    def flat_features(self, features: Any) -> Tensor:
        """What the text model knows of images and prompt, and the state: [B, num_features], without gradients."""
        return self._flat(self._network_inputs(features))

    def _flat(self, inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return torch.cat((self.network(self.network.summary, *inputs[:-1]).float(), inputs.state), dim=1)

    @property
    def embedding_width(self) -> int:
        """See HasEmbeddings."""
        return self._setup.checkpoint.sizes.text.width

    def embeddings(self, observations: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        state = self._setup.state_axes.read(observations)
        inputs = self._inputs(observations, state, torch.empty(len(state), 0, device=self._device))
        with torch.inference_mode(False), torch.no_grad():
            _, found, mask = self.network(self.network.prefix_and_embeddings, *inputs[:-1])
        return found, mask

    def normalize_actions(self, actions: Tensor, observations: Mapping[str, Tensor] | None = None) -> Tensor:
        """Chunks [B, H, A] in the checkpoint's order, with NaN behind a shorter chunk."""
        if observations is None:
            raise UsageError(f"policy '{self.family.name}' needs the observations of the actions to normalize")
        setup = self._setup
        state = setup.state_axes.read({key: observations[key].cpu().numpy() for key in setup.state_axes.keys})
        whole = self._whole(actions.cpu().numpy().reshape(len(state), -1, actions.shape[-1]))
        normalized = setup.action.apply(setup.action_axes.to_checkpoint(whole, state))
        return torch.from_numpy(normalized).to(actions.device)

    def imitation_loss(
        self, features: Any, actions: Tensor, mask: Tensor | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        if mask is not None and mask.ndim == 3:
            mask = mask[..., torch.as_tensor(self._setup.action_axes.order, device=mask.device)]
        mask = (
            actions.isfinite()
            if mask is None
            else (mask if mask.ndim == 3 else mask[..., None]) & actions.isfinite()
        )
        return flow_matching_loss(self.network, self._network_inputs(features), actions, mask, generator=generator)

    def sample(self, features: Any, *, generator: Generator | None) -> tuple[Tensor, Tensor]:
        raise UsageError(
            f"policy '{self.family.name}' cannot compute the density of its actions, which this algorithm needs. Train it "
            "with algorithm 'imitation', 'hg_dagger', 'hi_ors' or 'recap'"
        )

    def _network_inputs(self, features: Any) -> Inputs:
        """With room for noise, which the loss draws."""
        sizes = self._setup.checkpoint.sizes
        noise = torch.zeros((len(features), sizes.horizon, sizes.action_size), device=features.device)
        return Inputs(**{**{name: features[name] for name in Inputs._fields}, "noise": noise})

    # ---- Steerable

    @cached_property
    def steering(self) -> SteeringActor | None:
        config = self._config.steering
        if config is None:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            actor = SteeringActor(
                num_features=self.num_features,
                num_noise=self.num_noise,
                hidden=config.hidden,
                max_noise=config.max_noise,
                standardizes=True,
            )
        return actor.to(self._device)

    @property
    def num_noise(self) -> int:
        """Padded axes have no noise."""
        repeats = self._config.steering is not None and self._config.steering.repeat
        return self._setup.action.size * (1 if repeats else self._setup.checkpoint.sizes.horizon)

    def steering_inputs(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        inputs = self._network_inputs(self.features(observations))
        with torch.inference_mode(False), torch.no_grad():
            prefix, *embeddings = self.network(self.network.prefix_and_embeddings, *inputs[:-1])
            s = torch.cat((masked_mean(*embeddings), inputs.state), dim=1)
        return s, (prefix, self._limits(observations))

    def chunks_from_noise(self, inputs: Any, noise: Tensor) -> Tensor:
        """Eager and in the precision of the learner, as the sampler of a robot need not be. Limited as in acting: a critic
        of executed actions knows no others."""
        prefix, limits = inputs
        x, network = self._whole_noise(noise), self.network
        num = self._config.num_flow_steps or self._setup.checkpoint.sizes.num_flow_steps
        with torch.inference_mode(False), torch.no_grad():
            times = network.embed_times(
                (1.0 - torch.arange(num, dtype=torch.float64, device=x.device) / num).float()
            )
            for step in range(num):
                x = x - network.velocity(x, times[step : step + 1], prefix) / num
        return x[..., : self._setup.action.size].clamp(*limits)

    def _limits(self, observations: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The robot's limits as normalized actions [B, 1, A]; those of relative axes depend on the state."""
        num_rows = len(observations["prompt"])
        low, high = (
            self.normalize_actions(torch.from_numpy(limit).expand(num_rows, 1, -1), observations)[:, :1]
            for limit in self._robot.action.bounds
        )
        return low.to(self._device), high.to(self._device)

    def _steered(self, inputs: Inputs, context: ActContext) -> Inputs:
        steering = self.steering
        if steering is None or not steering.engaged:
            return inputs
        with torch.inference_mode(False), torch.no_grad():
            s = steering.standardize(self._flat(inputs))
            if context.deterministic:
                noise = steering.most_likely(s)
            else:
                noise, _ = steering.sample(s, generator=seeded_generator(context.seed))
        return inputs._replace(noise=self._whole_noise(noise))

    def _whole_noise(self, noise: Tensor) -> Tensor:
        """Noise [B, N] of the actor as the network's, [B, H, A]: padded axes are 0."""
        sizes, size = self._setup.checkpoint.sizes, self._setup.action.size
        whole = noise.view(len(noise), -1, size).expand(-1, sizes.horizon, -1)
        return functional.pad(whole, (0, sizes.action_size - size))

    # ---- folders for others

    def export(self, folder: Path) -> None:
        """Write the trained weights as a LeRobot folder. LoRA is merged, so this policy learns no more."""
        setup = self._setup
        if self.lora is not None:
            self.lora.merge()
        checkpoint = replace(setup.checkpoint, state=setup.state, action=setup.action)
        write_lerobot(folder, checkpoint, changed=dict(self.network.named_parameters()))

    def export_lora(self, folder: Path) -> None:
        """Write the adapters alone, as a folder of PEFT."""
        if self.lora is None:
            raise UsageError(
                f"the run has policy.train={self._config.train}, so it has no adapters. Leave out --lora"
            )
        write_adapter(folder, self.lora, base=str(self._setup.checkpoint.folder))

    # ---- statistics

    def fit_normalizer(self, columns: Mapping[str, Array]) -> None:
        """Compute the statistics if `policy.fit_stats` says so; otherwise they belong to the checkpoint."""
        if not self._config.fit_stats:
            return
        if _ACTIONS not in columns:
            raise UsageError("policy.fit_stats needs demonstrations with actions. Set run.demos or import some")
        setup = self._setup
        actions = np.asarray(columns[_ACTIONS], np.float32)[:, setup.action_axes.order]
        values = {"state": setup.state_axes.read(columns), "action": actions}
        arrays = {
            f"{name}.{key}": value for name, of in values.items() for key, value in compute_statistics(of).items()
        }
        self._use_statistics(arrays)

    def _use_statistics(self, arrays: Mapping[str, Array]) -> None:
        state, action = from_arrays(arrays, self._setup.checkpoint)
        self.__dict__["_setup"] = replace(self._setup, state=state, action=action)

    # ---- CachesFeatures

    @property
    def feature_specs(self) -> Mapping[str, ArraySpec]:
        """Tokens of the vision tower, if it is frozen and `policy.cache_vision` is set."""
        if not self._config.cache_vision:
            return {}
        sizes = self._setup.checkpoint.sizes
        spec = ArraySpec(shape=(sizes.vision.num_tokens, sizes.text.width), dtype="float32")
        return dict.fromkeys(self._setup.cameras.values(), spec)

    @property
    def feature_digest(self) -> str:
        return self._trained.digest if self._config.cache_vision else ""

    def encode(self, key: str, frames: Array) -> Array:
        frames = resize_images(frames, self.spec.observation[key])
        found = []
        with torch.no_grad():
            for first in range(0, len(frames), 64):
                images = self._prepared(frames[first : first + 64])[:, None]
                found.append(to_numpy(self._vision_tokens(images).float()))
        return np.concatenate(found)

    def _vision_tokens(self, images: Tensor) -> Tensor:
        network: FlowNetwork = self.network
        tokens: Tensor = network(network.vision, images.flatten(0, 1))
        return tokens

    # ---- weights

    def weights(self, components: Mapping[str, nn.Module] | None = None) -> Mapping[str, Mapping[str, Array]]:
        setup = self._setup
        return {**self._trained.arrays(components), NORMALIZER: to_arrays(setup.state, setup.action)}

    def component_arrays(self, name: str) -> Mapping[str, Array]:
        """The arrays of one component. What is not trained is only a hash: it stays in the checkpoint's folder."""
        return self.weights()[name]

    def load(self, snapshot: WeightSnapshot) -> None:
        self._check_snapshot(snapshot)
        self._use_statistics(snapshot.components[NORMALIZER])
        self._trained.load(snapshot.components)
        self._version = snapshot.version

    def stage(self, snapshot: WeightSnapshot) -> Callable[[], None]:
        """See StagesWeights. Weights keep their addresses on a GPU, so CUDA graphs stay valid. With LoRA, a graph computes
        the sums of weights and updates itself."""
        self._check_snapshot(snapshot)
        use_weights = self._trained.stage(snapshot.components, self._device)

        def use() -> None:
            use_weights()
            self._use_statistics(snapshot.components[NORMALIZER])
            self._version = snapshot.version

        return use

    def _check_snapshot(self, snapshot: WeightSnapshot) -> None:
        misfit = f"weights version {snapshot.version} do not fit policy '{self.family.name}': "
        if NORMALIZER not in snapshot.components:
            raise UsageError(f"{misfit}they have no statistics")
        self._trained.check(snapshot.components, misfit=misfit)
