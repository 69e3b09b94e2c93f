"""The deployed policy and its candidate: what the page Learning shows of them, and the changes that a person asks for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from pydantic import Field

from dovetail.config.model import Config
from dovetail.console.layout import user_name
from dovetail.console.threads import in_thread
from dovetail.core.disk import MissingError, load_json, read_file
from dovetail.core.errors import DovetailError
from dovetail.core.figures import Performance
from dovetail.core.stats import Rate
from dovetail.runs.deployment import DEPLOYMENT, Deployment
from dovetail.runs.deployment_request import REQUEST, Change, request_change
from dovetail.runs.folder import RunFolder

__all__ = ["RunDeployment", "add_deployment"]

_INVALID = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)  # a file that no run wrote


class ChangeRequest(Config):
    change: Change
    seen: str = Field(max_length=4000)


class RunDeployment:
    """The deployment of a run, from its folder. The folder is opened only once there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder: RunFolder | None = None
        self._guard = threading.Lock()

    def has_gate(self) -> bool:
        """Whether the gate of the run chooses the version that acts."""
        file = self._path / DEPLOYMENT
        try:
            data = load_json(read_file(file), name=str(file), indent=2)
            return data["deployed"]["version"] is not None
        except (DovetailError, *_INVALID):
            return False

    def shown(self) -> dict[str, Any] | None:
        """Both policies with their figures, the test, and the last change. None: nothing was ever deployed here."""
        try:
            read_file(self._path / DEPLOYMENT)
        except MissingError:
            return None
        with self._guard:
            deployment = Deployment.load(self._open())
            try:
                return _shown(deployment, requested=self._open().read_json(REQUEST))
            except _INVALID as error:
                raise HTTPException(409, f"{DEPLOYMENT} is not valid: {type(error).__name__}") from error

    def change(self, change: Change, *, seen: str, by: str) -> bool:
        """Make the change, and return True. Return False if the run is active: it makes the change between two episodes."""
        with self._guard:
            return request_change(self._open(), change, seen=seen, by=by)

    def _open(self) -> RunFolder:
        if self._folder is None:
            self._folder = RunFolder.open(self._path)
        return self._folder


def add_deployment(app: FastAPI, deployment: RunDeployment) -> None:
    @app.get("/api/deployment")
    async def get_deployment() -> dict[str, Any]:
        return {"deployment": await in_thread(deployment.shown)}

    @app.post("/api/deployment")
    async def post_deployment(request: ChangeRequest, http: Request) -> dict[str, bool]:
        by = user_name(http)
        change = partial(deployment.change, request.change, seen=request.seen, by=by)
        return {"done": await in_thread(change, time_limit_s=None)}


def _shown(deployment: Deployment, *, requested: Mapping[str, Any] | None) -> dict[str, Any]:
    outcomes, test, last = deployment.outcomes, deployment.rollback_test, deployment.last
    alone = Rate(successes=sum(outcomes), episodes=len(outcomes)) if outcomes else None
    decided: dict[str, str] = {key: str(last[key]) for key in ("change", "answer", "reason") if key in last}
    if last:
        decided["name"] = _named(str(last["weights"]), last.get("version"))["name"]
    deployed: dict[str, Any] = {
        **_named(deployment.deployed.weights, deployment.deployed.version),
        "alone": _rate(alone),
        "expected_rate": deployment.deployed.expected_rate,
        "evidence": None if test is None else float(test.evidence),
        "limit": None if test is None else 1.0 / test.false_alarm_rate,
    }
    candidate: dict[str, Any] | None = None
    if deployment.candidate is not None:
        candidate = {**_named(deployment.candidate, deployment.candidate_version)}
    comparison, tested = deployment.comparison, None
    if comparison is not None and candidate is not None and comparison.test is not None:
        deployed["compared"], candidate["compared"] = _main(comparison.deployed), _main(comparison.candidate)
        tested = {
            **comparison.test.to_json(),
            "max_pairs": comparison.max_pairs,
            "is_success": comparison.candidate.success is not None,
            "finished": comparison.is_finished,
        }
    return {
        "deployed": deployed,
        "candidate": candidate,
        "test": tested,
        "earlier": [_named(one.weights, one.version)["name"] for one in reversed(deployment.earlier)],
        "last": decided,
        "requested": None if requested is None else str(requested.get("change")),
    }


def _named(weights: str, version: int | None) -> dict[str, str]:
    """`version 9` for weights of this run, otherwise the end of the path."""
    parts = Path(weights).parts
    name = f"version {version}" if version is not None else "/".join(part for part in parts[-3:] if part != "/")
    return {"weights": weights, "name": name}


def _main(performance: Performance) -> dict[str, Any]:
    """The main figure with its interval."""
    main = performance.main
    if isinstance(main, Rate):
        return _rate(main) or {}
    return {} if main is None else {"mean": main.mean, "low": main.low, "high": main.high, "episodes": main.count}


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    return {"rate": rate.rate, "low": rate.low, "high": rate.high, "episodes": rate.episodes}
