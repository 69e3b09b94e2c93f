"""The robot's role in a run: runs seeded episodes of any purpose on one arm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.contracts import Actor
from dovetail.core.errors import FailureError, RobotFault, StopRequested
from dovetail.core.figures import EpisodeScore
from dovetail.core.streams import stream
from dovetail.core.types import Episode, EpisodeOrder, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.spool import Spool
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.runs.assembly.build import Assembly

__all__ = ["EpisodeResult", "RobotRunner", "evaluation_episodes", "interrupted_evaluation", "order_episode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """What a run needs to know of an episode that was recorded."""

    id: str
    score: EpisodeScore
    robot: str  # the arm's name in the run


def order_episode(
    assembly: Assembly, *, purpose: Purpose, index: int, config_hash: str, robot_minutes: float = 0.0
) -> EpisodeOrder:
    """The order for an actor. Its random numbers depend on the run's seed, the purpose and the index alone."""
    now_ns = time.time_ns()
    run = assembly.config.run
    noiseless = (
        purpose is Purpose.ONLINE and stream(run.seed, "noiseless", index).random() < run.deterministic_share
    )
    return EpisodeOrder(
        id=new_episode_id(unix_ns=now_ns, robot=assembly.robot.spec.name),
        purpose=purpose,
        seed=run.seed,
        index=index,
        config_hash=config_hash,
        deterministic=noiseless or (purpose is Purpose.EVAL and not run.eval_noise),
        robot_minutes=robot_minutes,
        started_unix_ns=now_ns,
    )


class RobotRunner:
    """Runs episodes on one arm, with one actor per purpose.

    `spool` records an episode while it runs. `weights` is the folder from which an actor with `swap_weights: chunk` loads
    newer weights during an episode.
    """

    def __init__(
        self, assembly: Assembly, *, config_hash: str, spool: Spool | None = None, weights: Path | None = None
    ) -> None:
        self._assembly, self._config_hash, self._spool, self._weights = assembly, config_hash, spool, weights
        self._actors: dict[Purpose, Actor] = {}
        self._actor: Actor | None = None  # of the last episode
        self.loaded: tuple[Purpose, int] | None = None  # purpose and version of the weights that were loaded last
        self.running: str | None = None  # id of the episode that the actor runs; other threads must not read it
        self._stopped_while_loading = False
        self.num_restarts = 0  # of the arm's processes; the owner counts them

    @property
    def stopped(self) -> bool:
        """Whether the last episode ended because the run was asked to stop."""
        return self._stopped_while_loading or (self._actor is not None and self._actor.stopped)

    @property
    def fault(self) -> str | None:
        return self._actor.fault if self._actor is not None else None

    def telemetry(self, purpose: Purpose) -> dict[str, float]:
        return dict(self._actors[purpose].telemetry()) if purpose in self._actors else {}

    def prepare(self, purpose: Purpose) -> None:
        """Build a new actor for this purpose."""
        self._actors[purpose] = self._assembly.actor_for(purpose, spool=self._spool, weights=self._weights)
        self.loaded = None

    def run(
        self, purpose: Purpose, index: int, weights: WeightSnapshot | None, *, robot_minutes: float = 0.0
    ) -> Episode | None:
        """Run one episode; None if it was stopped before its first step. Without weights, the policy is untrained."""
        if purpose not in self._actors:
            self.prepare(purpose)
        self._actor, self._stopped_while_loading = self._actors[purpose], False
        if weights is not None and self.loaded != (purpose, weights.version):
            try:
                self._actor.load(weights)
            except StopRequested:
                self._stopped_while_loading = True
                return None
            self.loaded = (purpose, weights.version)
        order = order_episode(
            self._assembly,
            purpose=purpose,
            index=index,
            config_hash=self._config_hash,
            robot_minutes=robot_minutes,
        )
        self.running = order.id
        try:
            return self._actor.run(order)
        finally:
            self.running = None

    def run_through(self, purpose: Purpose, index: int, weights: WeightSnapshot | None) -> Episode | None:
        """As `run`, but repeat an episode that a fault cut short once the fault is acknowledged or repaired."""
        while True:
            num_restarts, episode = self.num_restarts, None
            try:
                episode = self.run(purpose, index, weights)
            except RobotFault:
                if not self._is_repaired(num_restarts):
                    raise
            cut_short = episode is None or episode.outcome is Outcome.ABORTED
            if self.stopped or not cut_short or not self._is_repaired(num_restarts):
                return episode

    def _is_repaired(self, num_restarts: int) -> bool:
        acknowledged = isinstance(self._actor, AttendedActor) and self._actor.was_acknowledged
        return acknowledged or self.num_restarts > num_restarts

    def acknowledge(self) -> None:
        for actor in self._actors.values():
            actor.acknowledge()


def evaluation_episodes(
    assembly: Assembly, snapshot: WeightSnapshot | None, *, num_episodes: int, config_hash: str
) -> Iterator[Episode]:
    """Yield the evaluation episodes of these weights, or of an untrained policy; fewer if asked to stop.

    Every call has the same resets. No operator takes over, and there is no exploration noise unless `run.eval_noise` is set.
    """
    robot = RobotRunner(assembly, config_hash=config_hash)
    for index in range(num_episodes):
        episode = robot.run_through(Purpose.EVAL, index, snapshot)
        if episode is None:
            return
        if episode.outcome is Outcome.ABORTED and not robot.stopped:
            raise interrupted_evaluation(index, num_episodes)
        yield episode


def interrupted_evaluation(index: int, num_episodes: int, *, robot: str = "the robot") -> FailureError:
    """The error for an evaluation episode that a fault cut short: it measures nothing about the policy."""
    return FailureError(
        f"evaluation episode {index + 1} of {num_episodes} was cut short by a fault or a bad reading. Check {robot}, "
        "then evaluate again"
    )
