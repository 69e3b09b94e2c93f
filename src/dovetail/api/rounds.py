"""What follows a round of a run with `run.distill_every`: distill it, let the gate decide, and name the run that goes on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.api.distillation import LINEAGE
from dovetail.api.distilled_candidate import offer, train_candidate
from dovetail.api.launch import RunOptions
from dovetail.api.names import check_name
from dovetail.config.deploy import DeployConfig
from dovetail.core.errors import StoreError
from dovetail.runs.folder import RunFolder
from dovetail.runs.rounds import Distillation, Rounds
from dovetail.weights.store import DiskWeightStore

__all__ = ["next_round"]

Announce = Callable[[str], None]


def next_round(
    folder: RunFolder,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Announce = lambda line: None,
) -> Path | None:
    """Make the distillation that is due in an unlocked run; return the run that goes on. None: all rounds are over.

    A killed process repeats what it had not finished: training continues, and a comparison begins again.
    """
    rounds = Rounds(folder)
    if rounds.successor is not None:
        return folder.path.parent / check_name(rounds.successor)
    env_steps, has_ended = rounds.due_steps, rounds.has_ended
    if env_steps is None:
        return None
    number = _lineage(folder).get("num_distilled", 0) + len(rounds.made) + 1
    path = folder.path.with_name(f"{_stem(folder)}-base-{number}")
    announce(f"distilling {folder.path.name} into {path.name}")
    num_updates, options = folder.config.run.distill_updates, RunOptions(should_stop=should_stop)
    base = train_candidate(path, folder.path, _into(folder), num_updates=num_updates, options=options)
    gate = folder.config.deploy or DeployConfig()
    decision = offer(folder.path, path, gate, should_stop=should_stop, announce=announce)
    announce(f"{path.name} is '{decision['answer']}': {decision['change']}")
    successor = None
    if decision["change"] == "deployed" and not has_ended:
        successor = _successor(folder, base, env_steps=env_steps, num_distilled=number)
    rounds.record(
        Distillation(
            env_steps=env_steps,
            base=path.name,
            answer=decision["answer"],
            successor=None if successor is None else successor.path.name,
        )
    )
    if successor is not None:
        return successor.path
    return None if has_ended else folder.path


def _into(folder: RunFolder) -> str | Path:
    """What is fine-tuned: the base of this run, or in the first round what the config names."""
    base: dict[str, Any] = getattr(folder.config.policy.config, "base", {})
    named = folder.config.run.distill_into
    if named is not None and not _lineage(folder):
        return named
    return Path(base["run"]).expanduser()


def _successor(folder: RunFolder, base: RunFolder, *, env_steps: int, num_distilled: int) -> RunFolder:
    """A run like this one, with the new base and the rest of the budget. Its residual starts from zero."""
    config, round_number = folder.config, int(_lineage(folder).get("round", 1)) + 1
    policy = config.policy.to_plain() | {"base": {"run": str(base.path)}}
    left = config.run.env_steps - env_steps
    changed = config.model_dump(mode="json") | {"policy": policy}
    changed["run"]["env_steps"] = left
    path = folder.path.parent / f"{_stem(folder)}-round-{round_number}"
    if path.exists():
        if (path / LINEAGE).exists():
            return RunFolder.open(path)
        shutil.rmtree(path)
    made = RunFolder.create(path, type(config).from_mapping(changed))
    lineage = {
        "run": str(folder.path),
        "config_hash": folder.config_hash,
        "base": str(base.path),
        "base_version": max(DiskWeightStore(base.weights).versions(), default=None),
        "round": round_number,
        "num_distilled": num_distilled,
    }
    made.event("round", **lineage)
    made.write_json(LINEAGE, lineage)
    return made


def _lineage(folder: RunFolder) -> dict[str, Any]:
    found = folder.read_json(LINEAGE) or {}
    for key in ("round", "num_distilled"):
        if type(found.get(key, 0)) is not int:
            raise StoreError(
                f"{folder.path / LINEAGE} is damaged: `{key}` should be a number. Copy the folder again"
            )
    return found


def _stem(folder: RunFolder) -> str:
    return re.sub(r"-round-\d+$", "", folder.path.name)
