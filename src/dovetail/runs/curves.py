"""Events and metrics that a run writes for each online episode or rollout."""

from __future__ import annotations

from typing import Any

from dovetail.core.figures import EpisodeScore
from dovetail.core.types import Episode, Labels
from dovetail.learn.metrics import MetricsLog
from dovetail.runs.evaluations import figure_curve
from dovetail.runs.folder import RunFolder
from dovetail.runs.phase_times import PhaseTimes
from dovetail.runs.rollout_history import RolloutResult, record_rollout
from dovetail.runs.status import RunStatus

__all__ = ["Curves"]


class Curves:
    def __init__(self, folder: RunFolder, *, metrics: MetricsLog, status: RunStatus, phases: PhaseTimes) -> None:
        self._folder, self._metrics, self._status, self._phases = folder, metrics, status, phases

    def episode(self, episode: Episode, labels: Labels | None) -> None:
        """Record an online episode. Success and return are left out while it has no labels, success where there is none."""
        status = self._status
        facts: dict[str, Any] = {}
        if labels is not None:
            facts = {"return": float(labels.rewards.sum())}
            if episode.has_success or labels.success:
                facts["success"] = float(labels.success)
        facts |= {"human_share": episode.num_human_steps / len(episode), "length": float(len(episode))}
        version, score = int(episode.column("policy_version")[-1]), EpisodeScore.of(episode)
        about = {
            "id": episode.id,
            "robot": episode.robot.name,
            "outcome": episode.outcome,
            "policy_version": version,
        }
        times = {"duration_s": score.duration_s, "reset_s": score.reset_s, "interventions": score.interventions}
        self._folder.event("episode", **about, env_steps=status.env_steps, **facts, **times)
        components = [name for name in episode.segments[0].columns if name.startswith("reward/")]
        facts |= {name: float(episode.column(name).sum()) for name in components}  # from the task, without labels
        facts |= {f"metric/{name}": value for name, value in score.metrics.items()}
        self.times()
        self._metrics.write("online", facts, step=status.env_steps)
        self._recent()
        self._metrics.write("learner", status.metrics, step=status.env_steps)
        self._metrics.write("actor", status.telemetry, step=status.env_steps)
        if status.waiting:
            waiting = {"waiting": float(sum(status.waiting.values()))}
            self._metrics.write("labels", waiting, step=status.env_steps)

    def rollout(self, result: RolloutResult) -> None:
        status = self._status
        self._metrics.write("online", result.means(), step=status.env_steps)
        self._recent()
        self._metrics.write("learner", result.metrics, step=status.env_steps)
        record_rollout(self._folder, result, env_steps=status.env_steps, robot_minutes=status.robot_minutes)

    def _recent(self) -> None:
        """The figures of the latest episodes, such as cycle time and throughput."""
        performance = self._status.performance()
        if performance is not None:
            success = {} if performance.success is None else {"success": performance.success.rate}
            self._metrics.write("recent", success | figure_curve(performance), step=self._status.env_steps)

    def times(self) -> None:
        status = self._status
        spent, rates = self._phases.lap(env_steps=status.env_steps, updates=status.updates)
        self._metrics.write("time", spent, step=status.env_steps)
        self._metrics.write("throughput", rates, step=status.env_steps)
