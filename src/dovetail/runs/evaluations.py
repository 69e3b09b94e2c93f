"""The evaluations of a run: made once each, kept in its folder, and known from there after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.core.stats import Rate
from dovetail.core.types import Episode, Outcome, WeightSnapshot
from dovetail.episodes.spool import Spool
from dovetail.learn.metrics import MetricsLog
from dovetail.runs.assembly.build import Assembly
from dovetail.runs.evaluate import evaluation_episodes
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus, StatusListener

__all__ = ["MAIN", "Evaluations", "evaluation_curve", "known_evaluation", "note_evaluation"]

MAIN = ("untrained", "cloning", "after")  # that every run has


class Evaluations:
    """`make` one by its name. What an earlier process has made stands in `status` from the beginning."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        station: Assembly,
        spool: Spool,
        metrics: MetricsLog,
        status: RunStatus,
        watch: StatusListener,
        commit: Callable[[Episode], None],
    ) -> None:
        self._folder, self._station, self._spool = folder, station, spool
        self._metrics, self._status, self._watch, self._commit = metrics, status, watch, commit
        self.enabled, self.offline = True, False
        for name in MAIN:
            rate = self.known(name)
            if rate:
                status.rates[name] = rate

    def known(self, name: str) -> Rate | None:
        return known_evaluation(self._folder, name)

    def go_on_from_training(self) -> None:
        """What `train` came to is where practice begins, and not what came of it."""
        name = "evaluations/after.json"
        if (self._folder.read_json(name) or {}).get("offline"):
            (self._folder.path / name).rename(self._folder.path / "evaluations/trained.json")
            self._status.rates.pop("after")

    def make(
        self,
        name: str,
        snapshot: Callable[[], WeightSnapshot | None],
        *,
        num_episodes: int,
        keep: Callable[[Rate], None] = lambda rate: None,
    ) -> Rate | None:
        """Unless it is known already. Fewer episodes than wanted: somebody asked to stop, and nothing is noted. What was
        evaluated is there to `keep` before it is noted: from then on nobody comes back to it."""
        if not num_episodes or not self.enabled or self.known(name):
            return None
        status = self._status
        status.begin(f"evaluating: {name}", num_episodes)
        self._watch(status)
        weights = snapshot()
        ids, num_successes = [], 0
        for episode in evaluation_episodes(
            self._station,
            weights,
            num_episodes=num_episodes,
            config_hash=self._folder.config_hash,
            spool=self._spool,
            weights=self._folder.weights,
        ):
            self._commit(episode)
            ids.append(episode.id)
            num_successes += episode.outcome is Outcome.SUCCESS
            status.done = len(ids)
            self._watch(status)
        rate = Rate(successes=num_successes, episodes=len(ids))
        if len(ids) == num_episodes:
            version = None if weights is None else weights.version
            keep(rate)
            self._note(name, rate, version=version, shown=ids[: self._folder.config.run.showcase_episodes])
        return rate

    def _note(self, name: str, rate: Rate, *, version: int | None, shown: list[str]) -> None:
        offline = {"offline": True} if self.offline else {}
        note_evaluation(self._folder, name, rate, status=self._status, version=version, shown=shown, facts=offline)
        self._metrics.write("evaluation", evaluation_curve(name, rate), step=self._status.env_steps)
        self._watch(self._status)


def known_evaluation(folder: RunFolder, name: str) -> Rate | None:
    """What came of one that was made."""
    found = folder.read_json(f"evaluations/{name}.json")
    return Rate(successes=found["successes"], episodes=found["episodes"]) if found else None


def note_evaluation(
    folder: RunFolder,
    name: str,
    rate: Rate,
    *,
    status: RunStatus,
    version: int | None,
    shown: list[str],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """For good: it is not made again."""
    when = {"env_steps": status.env_steps, "robot_minutes": status.robot_minutes}
    made = {"successes": rate.successes, "shown": shown, **when, **rate.to_json(), **(facts or {})}
    folder.write_json(f"evaluations/{name}.json", made)
    folder.event("evaluated", name=name, version=version, **when, **rate.to_json(), **(facts or {}))
    status.rates[name] = rate


def evaluation_curve(name: str, rate: Rate) -> dict[str, float]:
    """What of it goes into curves."""
    if name in MAIN:
        return {name: rate.rate}
    return {"scheduled": rate.rate, "scheduled_low": rate.low, "scheduled_high": rate.high}  # points of one curve
