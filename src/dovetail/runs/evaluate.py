"""Exactly so many seeded episodes, nobody helping, the same resets every time; no exploration noise unless asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from dovetail.core.errors import FailureError
from dovetail.core.streams import stream
from dovetail.core.types import Episode, EpisodeOrder, Outcome, Purpose, WeightSnapshot
from dovetail.episodes.ids import new_episode_id
from dovetail.episodes.spool import Spool
from dovetail.robot_host.attended_actor import AttendedActor
from dovetail.runs.assembly.build import Assembly

__all__ = ["evaluation_episodes", "order_episode"]


def order_episode(
    station: Assembly, *, purpose: Purpose, index: int, config_hash: str, robot_minutes: float = 0.0
) -> EpisodeOrder:
    """What to tell an actor. Chance is keyed by the run's seed, the purpose and the index alone."""
    now_ns = time.time_ns()
    run = station.config.run
    calm = purpose is Purpose.ONLINE and stream(run.seed, "noiseless", index).random() < run.noiseless_share
    return EpisodeOrder(
        id=new_episode_id(unix_ns=now_ns, robot=station.robot.spec.name),
        purpose=purpose,
        seed=run.seed,
        index=index,
        config_hash=config_hash,
        deterministic=calm or (purpose is Purpose.EVAL and not run.eval_noise),
        robot_minutes=robot_minutes,
        started_unix_ns=now_ns,
    )


def evaluation_episodes(
    station: Assembly,
    snapshot: WeightSnapshot | None,
    *,
    num_episodes: int,
    config_hash: str,
    spool: Spool | None = None,
    weights: Path | None = None,
) -> Iterator[Episode]:
    """Episodes of a policy with these weights, or of an untrained one, as they end; fewer if asked to stop."""
    actor = station.actor_for(Purpose.EVAL, spool=spool, weights=weights)
    if snapshot is not None:
        actor.load(snapshot)
    index = 0
    while index < num_episodes:
        order = order_episode(station, purpose=Purpose.EVAL, index=index, config_hash=config_hash)
        episode = actor.run(order)
        cut_short = episode is None or episode.outcome is Outcome.ABORTED
        if cut_short and not actor.stopped and isinstance(actor, AttendedActor) and actor.was_acknowledged:
            continue  # somebody has seen to the robot: the same one again
        if episode is None:  # asked to stop before its first step
            return
        if cut_short and not actor.stopped:  # it says nothing of the policy
            raise FailureError(
                f"evaluation episode {index + 1} of {num_episodes} was cut short by a fault or a bad reading: see to the "
                "robot, then evaluate again"
            )
        yield episode
        index += 1
