"""Builds policies and loads the components that they start from.

A component's checkpoint may be deleted later, so a run keeps a copy and loads that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from dovetail.config.policy_server import LearningServerConfig
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import ConfiguresDevice, ConfiguresEmbedding, ConfiguresProposal, MovesToDevice
from dovetail.core.bfloat16 import BFLOAT16, from_bfloat16
from dovetail.core.contracts import Policy
from dovetail.core.disk import read_file, write_atomic
from dovetail.core.errors import StoreError, UsageError, did_you_mean, one_line, shown
from dovetail.core.frozen_base import referenced_base
from dovetail.core.proposals import without_proposal
from dovetail.core.specs import RobotSpec
from dovetail.core.tensor_files import read_tensors, tensor_blocks
from dovetail.core.types import Array, WeightSnapshot
from dovetail.policies.components import NetworkPolicyConfig
from dovetail.policies.lerobot.settings import LeRobotPolicyConfig
from dovetail.policies.remote.trained import TrainedRemotePolicy
from dovetail.policies.remote.weights import new_run_id
from dovetail.policies.vla.settings import MODEL, UserModelConfig, VlaConfig
from dovetail.runs.assembly.base_policy import BASE, BaseSource, HasBase, find_base, save_base
from dovetail.runs.component_folder import COMPONENTS
from dovetail.weights.store import DiskWeightStore

__all__ = [
    "build_acting_policy",
    "build_policy",
    "check_device",
    "check_size",
    "embedding_size",
    "proposal_steps",
    "read_component",
    "save_components",
]

_VERSION = re.compile(r"v(\d{8,})\.json")
_MAX_EXTRA_BYTES = 128 << 20  # of components that are not in the weights, such as a frozen encoder
_MODEL_FILES = ("model.safetensors", "model.safetensors.index.json")  # of a published folder
_IN_CHECKPOINT = "algorithm/policy/"  # prefix of the policy's arrays in a learner's checkpoint


class _ComponentConfig(Protocol):
    @property
    def checkpoint(self) -> str | None: ...


class _Module(Protocol):
    def parameters(self) -> Iterable[Any]: ...


@runtime_checkable
class HasTorchComponents(Protocol):
    @property
    def components(self) -> Mapping[str, _Module]: ...


class _HasWeights(Protocol):
    def weights(self) -> Mapping[str, Mapping[str, Array]]: ...


@runtime_checkable
class _HasComponents(Protocol):
    """A policy whose components may come from checkpoints. A Protocol, because its class would import torch."""

    @property
    def component_configs(self) -> Mapping[str, _ComponentConfig]: ...

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None: ...

    def component_arrays(self, name: str) -> Mapping[str, Array]: ...


def build_policy(section: PluginSection, *, robot: RobotSpec, seed: int, components: Path | None = None) -> Policy:
    """A new policy. `components` is the folder with the run's copies of the components that it started from."""

    def read(name: str, source: str) -> Mapping[str, Array]:
        if components is not None and (copy := _copy_path(components, name)).is_file():
            return read_tensors(copy)
        return read_component(Path(source), name)

    handle = _base_handle(section, robot, seed, components)
    if isinstance(section.config, LeRobotPolicyConfig) and section.config.checkpoint is not None:
        _check_folder_size(section, section.config, robot=robot, components=components)
    policy = section.build(robot=robot, seed=seed, **handle)
    if isinstance(section.config, NetworkPolicyConfig) and section.config.normalization:
        policy.set_normalization(section.config.normalization)
    if isinstance(policy, _HasComponents):
        policy.load_components(read)
    return cast(Policy, policy)


def build_acting_policy(
    section: PluginSection,
    *,
    robot: RobotSpec,
    seed: int,
    components: Path | None = None,
    server: LearningServerConfig | None = None,
    run_id: str | None = None,
    simulated: bool = False,
) -> Policy:
    """A new policy that computes where `policy.device` says. Sets the number of CPU threads of this process.

    With a server, the policy computes there with the weights of the run `run_id`; in `simulated` time the run waits for
    a server that is gone."""
    build = partial(build_policy, section, robot=robot, seed=seed, components=components)
    if server is not None:
        return TrainedRemotePolicy(
            server,
            spec=build().spec,
            run=run_id or new_run_id(),
            untrained=lambda: cast(_HasWeights, build()).weights(),
            waits=simulated,
        )
    device = check_device(section)
    policy = build()
    if isinstance(section.config, ConfiguresDevice):
        import torch

        torch.set_num_threads(section.config.num_threads)
        if isinstance(policy, MovesToDevice):  # others read the setting themselves
            policy.to(device)
    return policy


def check_device(section: PluginSection) -> Any:
    """The torch device of a policy that acts; None for one that computes elsewhere. Raise UsageError if it is missing."""
    if not isinstance(section.config, ConfiguresDevice):
        return None
    from dovetail.policies.device import find_device

    return find_device(section.config.device, setting="policy.device")


def check_size(
    section: PluginSection, *, robot: RobotSpec, snapshot: WeightSnapshot, components: Path | None = None
) -> None:
    """Raise StoreError if a policy is far larger than the weights that it shall load, before memory is allocated for it.

    The config of a run folder may come from an untrusted source."""
    # code of the user, which need not work without memory, or a published folder, which decides its sizes itself
    if isinstance(section.config, UserModelConfig | VlaConfig):
        return
    if (base := _base_source(section, components)) is not None:  # first, because it is built below
        weights = base.weights or WeightSnapshot(version=0, components={}, hashes={})
        arm = without_proposal(robot)
        check_size(base.section, robot=arm, snapshot=weights, components=base.components)
    handle = _base_handle(section, robot, 0, components)
    needed = _parameter_bytes(section, robot, handle)
    if needed is None:
        return
    sizes = {name: sum(array.nbytes for array in arrays.values()) for name, arrays in snapshot.components.items()}
    for copy in (
        components.glob("*.safetensors") if components is not None else ()
    ):  # frozen ones are in a file of the run
        if copy.stem in sizes or not snapshot.components:
            sizes[copy.stem] = max(sizes.get(copy.stem, 0), copy.stat().st_size)
    stored = sum(sizes.values())
    if needed > 2 * stored + _MAX_EXTRA_BYTES:
        raise StoreError(
            f"policy '{section.type}' has {needed >> 20} MB of parameters, but its weights have {stored >> 20} MB: the "
            "config does not belong to them"
        )


def _parameter_bytes(section: PluginSection, robot: RobotSpec, handle: Mapping[str, Any]) -> int | None:
    """Bytes of a policy's networks, computed without memory for them. None for a policy without torch."""
    import torch

    try:
        with torch.device("meta"):  # shapes only
            policy = section.build(robot=robot, seed=0, **handle)
    except (RuntimeError, OverflowError) as error:  # a size that no memory has
        raise StoreError(f"policy '{section.type}' is too large: {shown(one_line(error))}") from error
    if not isinstance(policy, HasTorchComponents):
        return None
    parameters = (p for part in policy.components.values() for p in part.parameters())
    num_bytes: int = sum(p.numel() * p.element_size() for p in parameters)
    return num_bytes


def _check_folder_size(
    section: PluginSection, config: LeRobotPolicyConfig, *, robot: RobotSpec, components: Path | None
) -> None:
    """Raise StoreError if the config of a published folder describes a far larger network than its weights."""
    from dovetail.policies.checkpoints.weight_files import WeightFiles  # torch comes with it

    needed = _parameter_bytes(section, robot, {})
    if needed is None or needed <= _MAX_EXTRA_BYTES:
        return
    folder = Path(config.checkpoint or "").expanduser()
    copies = [] if components is None else [path.stat().st_size for path in components.glob("*.safetensors")]
    stored = sum(copies) or 4 * WeightFiles(folder).num_values  # a copy has float32
    if needed > 2 * stored + _MAX_EXTRA_BYTES:
        raise StoreError(
            f"{folder}/config.json describes {needed >> 20} MB of parameters, but the weights have {stored >> 20} MB. "
            "Copy the folder again"
        )


def proposal_steps(section: PluginSection) -> int:
    """Actions of a base policy's proposal in each observation; 0 if the policy has no base."""
    return section.config.proposal_steps if isinstance(section.config, ConfiguresProposal) else 0


def embedding_size(section: PluginSection) -> int:
    """Values of a base policy's embedding in each observation; 0 if the policy reads none."""
    return section.config.embedding_size if isinstance(section.config, ConfiguresEmbedding) else 0


def _base_handle(
    section: PluginSection, robot: RobotSpec, seed: int, components: Path | None
) -> dict[str, Policy]:
    """The base policy that the policy corrects, if its config has one."""
    base = _base_source(section, components)
    if base is None:
        return {}
    policy = build_policy(base.section, robot=without_proposal(robot), seed=seed, components=base.components)
    if base.weights is not None:
        policy.load(base.weights)
    return {"base": policy}


def _base_source(section: PluginSection, components: Path | None) -> BaseSource | None:
    if not isinstance(section.config, ConfiguresProposal):
        return None
    return find_base(section.config.base, copies=None if components is None else components / BASE)


def save_components(policy: object, folder: Path) -> None:
    """Keep copies of the components of a new policy that came from checkpoints, and of its base."""
    if isinstance(policy, HasBase):
        save_components(policy.base, folder / BASE)
        save_base(policy.base, policy.base_source, folder / BASE)
    configs = policy.component_configs if isinstance(policy, _HasComponents) else {}
    for name, config in configs.items():
        if config.checkpoint is not None and not _copy_path(folder, name).is_file():
            assert isinstance(policy, _HasComponents)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(_copy_path(folder, name), tensor_blocks(policy.component_arrays(name)))


def read_component(path: Path, name: str) -> Mapping[str, Array]:
    """The arrays of one component, from a run, its weights, one version, a checkpoint, LeRobot's folder or a separate
    file."""
    found = _read_component(path, name)
    digest = referenced_base(found)
    return found if digest is None else _frozen_copy(path, name, digest)


def _frozen_copy(path: Path, name: str, digest: str) -> Mapping[str, Array]:
    """The copy that a run keeps of a frozen component, from any path in the run's folder."""
    for folder in (path, *path.absolute().parents[:3]):
        if (copy := _copy_path(folder / COMPONENTS, name)).is_file():
            return read_tensors(copy, checksum=digest)
    raise StoreError(
        f"{path} has component '{name}' only by its sha256 ({digest[:12]}), because it was frozen, and its run has no "
        f"copy in {COMPONENTS}/. Name the checkpoint that it came from"
    )


def _read_component(path: Path, name: str) -> Mapping[str, Array]:
    where = f"policy.components.{name}.checkpoint" if name != MODEL else "policy.checkpoint"
    if (path / "weights").is_dir():
        path = path / "weights"
    versions = DiskWeightStore(path).versions()
    if versions:
        return _published(path, max(versions), name)
    if (path / "manifest.json").is_file():
        return _from_checkpoint(path, name)
    if name != MODEL and (path / "config.json").is_file():
        from dovetail.policies.lerobot.folder import open_folder  # torch comes with it

        return open_folder(path).component(name)
    if any((path / file).is_file() for file in _MODEL_FILES):
        return _widened(_published_model(path), name)
    if not path.is_file():
        what = "holds no weights" if path.is_dir() else "does not exist"
        raise UsageError(f"{where}: {path} {what}. Name a run, its weights or checkpoint, or a safetensors file")
    if named := _VERSION.fullmatch(path.name):
        return _published(path.parent, int(named[1]), name)
    if path.suffix == ".safetensors":
        return _widened(_component_of(read_tensors(path), name, path), name)
    if path.suffix in (".pth", ".pt"):
        from dovetail.policies.torch_files import read_torch_file

        return read_torch_file(path)
    if path.suffix in (".pkl", ".pickle", ".json") and name == "normalizer":
        from dovetail.policies.statistics_files import read_statistics  # torch comes with it

        return read_statistics(read_file(path, max_bytes=_MAX_EXTRA_BYTES), name=str(path))
    raise UsageError(
        f"{where}: {path} is not a file of weights: expected .safetensors, .pth or .pt"
        + (", .pkl or .json" if name == "normalizer" else "")
    )


def _published_model(folder: Path) -> Mapping[str, Array]:
    """All tensors of a folder: one safetensors file, or shards with an index."""
    from dovetail.policies.checkpoints.weight_files import WeightFiles  # torch comes with it

    arrays: dict[str, Array] = {}
    for path in WeightFiles(folder).paths:
        arrays |= read_tensors(path)
    return arrays


def _widened(arrays: Mapping[str, Array], name: str) -> Mapping[str, Array]:
    """A user's model has float32 parameters; bfloat16 becomes float32, which is exact."""
    if name != MODEL:
        return arrays
    return {key: from_bfloat16(value) if value.dtype == BFLOAT16 else value for key, value in arrays.items()}


def _published(folder: Path, version: int, name: str) -> Mapping[str, Array]:
    components = DiskWeightStore(folder).load(version).components
    if name not in components:
        raise StoreError(
            f"weights version {version} in {folder} hold no component '{name}'.{did_you_mean(name, components)}"
        )
    return components[name]


def _from_checkpoint(folder: Path, name: str) -> Mapping[str, Array]:
    from dovetail.learn.checkpoint import load_checkpoint

    state, _ = load_checkpoint(folder)
    return _component_of(state, name, folder)


def _component_of(arrays: Mapping[str, Array], name: str, path: Path) -> Mapping[str, Array]:
    """The component out of a learner's whole state; any other file is the component."""
    if not any(key.startswith(_IN_CHECKPOINT) for key in arrays):
        return arrays
    prefix = f"{_IN_CHECKPOINT}{name}/"
    found = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
    if not found:
        names = {key.removeprefix(_IN_CHECKPOINT).partition("/")[0] for key in arrays if _IN_CHECKPOINT in key}
        raise StoreError(f"checkpoint {path} holds no component '{name}'.{did_you_mean(name, names)}")
    return found


def _copy_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"
