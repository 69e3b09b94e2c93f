"""Policies as a config asks for them: built, and their components given what they start from.

A component's checkpoint may lie anywhere, and be gone tomorrow. So a run keeps what it took, and takes that again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import safetensors
import safetensors.numpy

from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Policy
from dovetail.core.disk import read_file, write_atomic
from dovetail.core.errors import StoreError, UsageError, did_you_mean
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array
from dovetail.weights.store import DiskWeightStore

__all__ = ["build_policy", "save_components", "read_part"]

_VERSION = re.compile(r"v(\d{8,})\.json")
_IN_CHECKPOINT = "algorithm/policy/"  # what a learner's checkpoint calls its policy's arrays


class _Part(Protocol):
    @property
    def checkpoint(self) -> str | None: ...


@runtime_checkable
class _OfParts(Protocol):
    """A policy whose components may come from elsewhere; asked by name, so that others need not load torch."""

    @property
    def component_configs(self) -> Mapping[str, _Part]: ...

    def load_components(self, read: Callable[[str, str], Mapping[str, Array]]) -> None: ...

    def weights(self) -> Mapping[str, Mapping[str, Array]]: ...


def build_policy(section: PluginSection, *, robot: RobotSpec, seed: int, components: Path | None = None) -> Policy:
    """A new policy. `components` is the folder with the run's copies of the components that it started from."""

    def read(name: str, source: str) -> Mapping[str, Array]:
        if components is not None and (kept := _kept(components, name)).is_file():
            return _arrays(kept)
        return read_part(Path(source), name)

    policy = section.build(robot=robot, seed=seed)
    if isinstance(policy, _OfParts):
        policy.load_components(read)
    return cast(Policy, policy)


def save_components(policy: object, folder: Path) -> None:
    """Write down what the components of a new policy started from, where they came from elsewhere."""
    named = policy.component_configs if isinstance(policy, _OfParts) else {}
    for name, part in named.items():
        if part.checkpoint is not None and not _kept(folder, name).is_file():
            assert isinstance(policy, _OfParts)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(_kept(folder, name), safetensors.numpy.save(dict(policy.weights()[name])))


def read_part(path: Path, name: str) -> Mapping[str, Array]:
    """The arrays of one component: of a run, its weights, one version, a checkpoint, or a file of its own."""
    where = f"policy.components.{name}.checkpoint"
    if (path / "weights").is_dir():
        path = path / "weights"
    versions = DiskWeightStore(path).versions()
    if versions:
        return _published(path, max(versions), name)
    if (path / "manifest.json").is_file():
        return _learned(path, name)
    if not path.is_file():
        what = "holds no weights" if path.is_dir() else "is not there"
        raise UsageError(f"{where}: {path} {what}: name a run, its weights or checkpoint, or a safetensors file")
    if named := _VERSION.fullmatch(path.name):
        return _published(path.parent, int(named[1]), name)
    if path.suffix == ".safetensors":
        return _one_of_many(_arrays(path), name, path)
    if path.suffix in (".pkl", ".pickle", ".json") and name == "normalizer":
        from dovetail.policies.statistics_files import read_statistics  # torch comes with it

        return read_statistics(read_file(path), name=str(path))
    raise UsageError(
        f"{where}: {path} is no file of weights: expected .safetensors"
        + (", .pkl or .json" if name == "normalizer" else "")
    )


def _published(folder: Path, version: int, name: str) -> Mapping[str, Array]:
    components = DiskWeightStore(folder).load(version).components
    if name not in components:
        raise StoreError(
            f"weights version {version} in {folder} hold no component '{name}'.{did_you_mean(name, components)}"
        )
    return components[name]


def _learned(folder: Path, name: str) -> Mapping[str, Array]:
    from dovetail.learn.checkpoint import load_checkpoint

    state, _ = load_checkpoint(folder)
    return _one_of_many(state, name, folder)


def _one_of_many(arrays: Mapping[str, Array], name: str, path: Path) -> Mapping[str, Array]:
    """Of a learner's whole state, the component; any other file is the component."""
    if not any(key.startswith(_IN_CHECKPOINT) for key in arrays):
        return arrays
    prefix = f"{_IN_CHECKPOINT}{name}/"
    found = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
    if not found:
        names = {key.removeprefix(_IN_CHECKPOINT).partition("/")[0] for key in arrays if _IN_CHECKPOINT in key}
        raise StoreError(f"checkpoint {path} holds no component '{name}'.{did_you_mean(name, names)}")
    return found


def _arrays(path: Path) -> Mapping[str, Array]:
    try:
        arrays: dict[str, Array] = safetensors.numpy.load(read_file(path))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(f"{path} is not a safetensors file that numpy can read: {reason}") from error
    return arrays


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"
