"""Finds the frozen base of a policy that corrects it. A run keeps a copy of a local base, which may be deleted later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import ValidationError
from pydantic_core import PydanticCustomError, PydanticSerializationError

from dovetail.config.load import load_saved
from dovetail.config.schema import PluginSection
from dovetail.core.abilities import ConfiguresProposal
from dovetail.core.contracts import Policy
from dovetail.core.disk import MAX_JSON_BYTES, dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import ConfigError, PluginError, UsageError
from dovetail.core.tensor_files import read_tensors, tensor_blocks
from dovetail.core.types import Array, WeightSnapshot
from dovetail.runs.component_folder import COMPONENTS
from dovetail.weights.store import DiskWeightStore

__all__ = ["BASE", "BaseSource", "HasBase", "find_base", "save_base"]

BASE = "base"  # folder of the copies
_SECTION = "policy.json"


@runtime_checkable
class HasBase(Protocol):
    """A policy with a frozen base."""

    @property
    def base(self) -> Policy: ...

    @property
    def base_source(self) -> Mapping[str, Any]:
        """Config of the base: a policy section, or {run: RUN}."""


class _HasArrays(Protocol):
    def weights(self) -> Mapping[str, Mapping[str, Array]]: ...

    def component_arrays(self, name: str) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """Where a base comes from: its section, the folder of its components, and its weights if it has some."""

    section: PluginSection
    components: Path | None
    weights: WeightSnapshot | None = None


def find_base(source: Mapping[str, Any], *, copies: Path | None) -> BaseSource:
    """`source` is a policy section, or {run: RUN} for a run's policy with its newest weights. `copies` is the folder of the
    run's own copy, which replaces RUN once it exists. `load_saved` of the run has checked its section (`config.trust`)."""
    if "run" not in source:
        return BaseSource(section=_parsed(source, "policy.base"), components=copies)
    if copies is not None and (path := copies / _SECTION).is_file():
        data = load_json(read_file(path, max_bytes=MAX_JSON_BYTES), name=str(path), indent=1)
        components = {file.stem: read_tensors(file) for file in sorted(copies.glob("*.safetensors"))}
        weights = WeightSnapshot(version=0, components=components, hashes={})
        return BaseSource(section=_parsed(data, str(path)), components=copies, weights=weights)
    run = Path(source["run"]).expanduser()
    newest = DiskWeightStore(run / "weights").latest() if (run / "weights").is_dir() else None
    if newest is None:
        raise UsageError(f"policy.base.run: {run} has no weights. Name the folder of a run that has learned")
    section = _without_base(load_saved(run, quiet=True).config.policy, "policy.base.run")
    return BaseSource(section=section, components=run / COMPONENTS, weights=newest)


def _parsed(data: Mapping[str, Any], where: str) -> PluginSection:
    try:
        section = PluginSection.parse("policy", data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = f"{'.'.join(map(str, (where, *first['loc'])))}: {first['msg']}"
        raise ConfigError(" ".join(text.split())[:500]) from error
    except PydanticCustomError as error:
        raise PluginError(" ".join(f"{where}: {error.message()}".split())[:500]) from error
    except (PydanticSerializationError, RecursionError) as error:
        raise ConfigError(f"{where}: nested too deeply") from error
    return _without_base(section, where)


def _without_base(section: PluginSection, where: str) -> PluginSection:
    if isinstance(section.config, ConfiguresProposal):
        raise UsageError(
            f"{where}: policy '{section.type}' has a base itself, so it cannot be one. Distill its run first, and name the "
            "new run"
        )
    return section


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
