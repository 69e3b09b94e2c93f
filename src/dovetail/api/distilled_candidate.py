"""A distilled policy as a candidate: it is trained, and then the gate decides. A killed process may repeat both calls.

candidate = train_candidate(path, run, into, num_updates=3000, options={})  # continues what was begun
decision = offer(base_run, candidate.path, DeployConfig())  # or what was decided already
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.api.deployment import deploy, deployment_of
from dovetail.api.distillation import LINEAGE, prepare_distillation
from dovetail.api.launch import RunOptions, train
from dovetail.config.deploy import DeployConfig
from dovetail.config.load import Overrides
from dovetail.core.errors import Interrupted, UsageError
from dovetail.core.sequential_test import Answer
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder

__all__ = ["offer", "train_candidate"]

_POLL_S = 0.5


def train_candidate(
    path: Path,
    run: Path,
    into: str | Path,
    settings: Overrides = (),
    *,
    num_updates: int,
    evaluate: bool = False,
    options: RunOptions,
) -> RunFolder:
    """Fine-tune `into` on the successful episodes of a run, in the new run folder `path`: see `distill`."""
    if path.exists() and not (path / LINEAGE).is_file():
        shutil.rmtree(path)  # its demonstrations are not complete
    if not path.exists():
        prepare_distillation(run, into, settings, name=path.name, num_updates=num_updates, runs_dir=path.parent)
    resumed: RunOptions = {**options, "resume": path, "runs_dir": path.parent}
    return train(evaluate=evaluate, **resumed).folder


def offer(
    run: Path,
    candidate: Path,
    gate: DeployConfig,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] = lambda line: None,
) -> Mapping[str, Any]:
    """Compare run `candidate` with what is deployed in `run`. With `gate: person`, wait then until a person decides.

    Returns the decision: `change` (deployed or rejected), `answer`, and the figures of the comparison."""
    state = deployment_of(run)
    if (decision := _decision(state, candidate)) is not None:
        return decision
    if state.comparison is None or not _is_of(state.candidate, candidate):
        try:
            deploy(
                run,
                candidate,
                gate=gate.gate,
                num_episodes=gate.max_pairs,
                margin=gate.margin,
                should_stop=should_stop,
            )
        except UsageError as error:
            if should_stop():
                raise Interrupted("the comparison was stopped") from error
            raise
        state = deployment_of(run)
    if gate.gate == "person" and state.comparison is not None:
        announce(
            f"{candidate.name} is '{state.comparison.answer}' after {len(state.comparison.pairs)} pairs of episodes, and a "
            f"person decides: dovetail deploy {run} --approve, or --reject"
        )
    while (decision := _decision(state, candidate)) is None:
        if should_stop():
            raise Interrupted(f"{candidate} waits for a person")
        if not _is_of(state.candidate, candidate):
            raise UsageError(f"{candidate} is no longer the candidate of {run}. Run this again")
        time.sleep(_POLL_S)
        state = deployment_of(run)
    return decision


def _decision(state: Deployment, candidate: Path) -> Mapping[str, Any] | None:
    """The last decision, if it was about this candidate."""
    if state.last.get("change") in ("deployed", "rejected") and _is_of(state.last["weights"], candidate):
        return state.last
    if _is_of(state.deployed.weights, candidate):  # the last decision was about another one
        return {"change": "deployed", "answer": Answer.NOT_WORSE.value}
    return None


def _is_of(weights: str | None, run: Path) -> bool:
    return weights is not None and Path(weights).absolute().is_relative_to(run.absolute())
