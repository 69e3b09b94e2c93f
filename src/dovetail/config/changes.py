"""Settings that may change when a run continues, and the file that records them.

`config.yaml` of a run never changes: its hash is the run's identity in checkpoints, episodes and labels. `changes.json`
holds what `dovetail run --resume NAME key=value` changed since. Only the settings that a model lists in `CHANGEABLE` are
accepted, from the command line and from the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.config.model import Config, nested_models
from dovetail.config.schema import RunConfig
from dovetail.core.disk import MissingError, dump_json, load_json, read_file, write_atomic
from dovetail.core.errors import ConfigError, RunFolderError, StoreError, UsageError

__all__ = ["CHANGES_NAME", "changeable", "check_changes", "read_changes", "write_changes"]

CHANGES_NAME = "changes.json"


_OF_PLUGINS = ("policy.device", "policy.num_threads")  # the models of plugins are not known here


def changeable(model: type[Config] = RunConfig) -> list[str]:
    """The settings that may change, such as `run.env_steps`."""
    return [*_changeable(model, ""), *(_OF_PLUGINS if model is RunConfig else ())]


def check_changes(changes: Mapping[str, Any]) -> None:
    """Raise UsageError if one of the settings must not change in a resumed run."""
    allowed = changeable()
    wrong = [key for key in changes if not any(key == one or key.startswith(f"{one}.") for one in allowed)]
    if wrong:
        raise UsageError(
            f"a resumed run keeps its config: leave out {', '.join(wrong)}, or start a new run. It accepts "
            f"{', '.join(allowed)}"
        )


def read_changes(folder: Path) -> dict[str, Any]:
    """What was changed since the run began, by dotted key; the last change of a key counts."""
    path = folder / CHANGES_NAME
    try:
        settings = load_json(read_file(path), name=str(path), indent=2).get("settings")
    except MissingError:
        return {}
    except StoreError as error:
        raise ConfigError(f"{error}. Delete it to return to the settings that the run began with") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} has no settings. Delete it to return to those that the run began with")
    try:
        check_changes(settings)
    except UsageError as error:
        raise ConfigError(f"{path}: {error}") from error
    return settings


def write_changes(folder: Path, changes: Mapping[str, Any]) -> None:
    """Add to the changes of a run."""
    check_changes(changes)
    kept = {key: value for key, value in read_changes(folder).items() if key not in changes}
    try:
        write_atomic(folder / CHANGES_NAME, dump_json({"settings": {**kept, **changes}}, indent=2), mode=0o644)
    except OSError as problem:
        raise RunFolderError(f"cannot write {folder / CHANGES_NAME}: {problem.strerror}") from problem


def _changeable(model: type[Config], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in model.CHANGEABLE:
            yield f"{prefix}{name}"
        else:
            for nested in nested_models(field.annotation):
                yield from _changeable(nested, f"{prefix}{name}.")
