"""Builds the frozen base of a policy that corrects it. A run keeps a copy of a local base, which may be deleted later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from dovetail.config.load import load_saved
from dovetail.config.schema import PluginSection
from dovetail.core.contracts import Policy
from dovetail.core.disk import dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import UsageError
from dovetail.core.tensor_files import read_tensors, tensor_blocks
from dovetail.core.types import Array, WeightSnapshot
from dovetail.runs.component_folder import COMPONENTS
from dovetail.weights.store import DiskWeightStore

__all__ = ["BASE", "HasBase", "build_base", "save_base"]

BASE = "base"  # folder of the copies
_SECTION = "policy.json"


@runtime_checkable
class HasBase(Protocol):
    """A policy with a frozen base."""

    @property
    def base(self) -> Policy: ...

    @property
    def base_source(self) -> Mapping[str, Any]:
        """Its config: a policy section, or {run: RUN}."""


class _HasArrays(Protocol):
    def weights(self) -> Mapping[str, Mapping[str, Array]]: ...

    def component_arrays(self, name: str) -> Mapping[str, Array]: ...


def build_base(
    source: Mapping[str, Any], *, copies: Path | None, build: Callable[[PluginSection, Path | None], Policy]
) -> Policy:
    """`source` is a policy section, or {run: RUN} for a run's policy with its newest weights. `copies` is the folder of the
    run's own copy, which replaces RUN once it exists. `build(section, components)` makes a policy."""
    if "run" not in source:
        return build(PluginSection.parse("policy", source), copies)
    if copies is not None and (copies / _SECTION).is_file():
        path = copies / _SECTION
        policy = build(PluginSection.parse("policy", load_json(read_file(path), name=str(path), indent=1)), copies)
        files = sorted(copies.glob("*.safetensors"))
        _load(policy, {file.stem: read_tensors(file) for file in files}, version=0)
        return policy
    run = Path(source["run"]).expanduser()
    newest = DiskWeightStore(run / "weights").latest() if (run / "weights").is_dir() else None
    if newest is None:
        raise UsageError(f"policy.base.run: {run} has no weights. Name the folder of a run that has learned")
    policy = build(load_saved(run, quiet=True).config.policy, run / COMPONENTS)
    _load(policy, newest.components, version=newest.version)
    return policy


def save_base(base: Policy, source: Mapping[str, Any], copies: Path) -> None:
    """Keep a copy of a base that came from another run."""
    if "run" not in source or (copies / _SECTION).is_file():
        return
    copies.mkdir(parents=True, exist_ok=True)
    local = cast(_HasArrays, base)
    for name in local.weights():
        write_atomic(copies / f"{name}.safetensors", tensor_blocks(local.component_arrays(name)))
    section = load_saved(Path(source["run"]).expanduser(), quiet=True).config.policy.to_plain()
    own: dict[str, Any] = {"components": {}} if "components" in section else {}  # the copy has them
    write_atomic(copies / _SECTION, dump_json({**section, **own}, indent=1))  # last: the copy is complete


def _load(policy: Policy, components: Mapping[str, Mapping[str, Array]], *, version: int) -> None:
    policy.load(WeightSnapshot(version=version, components=components, hashes={}))
