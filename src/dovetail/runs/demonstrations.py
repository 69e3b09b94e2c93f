"""Recording demonstrations, until there are as many good ones as were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.core.contracts import Actor
from dovetail.core.errors import FailureError
from dovetail.core.types import Episode
from dovetail.runs.ingest import EpisodeIngest
from dovetail.runs.status import RunStatus, StatusListener

__all__ = ["demonstrate"]

_LOOK_S = 0.2  # between two looks for labels, where there is nothing else to do


def demonstrate(
    intake: EpisodeIngest,
    num_demos: int,
    *,
    status: RunStatus,
    task: str,
    actor: Callable[[], Actor],
    run: Callable[[Actor, int], Episode | None],
    watch: StatusListener,
    look_up: Callable[[], None],
) -> None:
    """`run(actor, index)` makes one; `look_up` may end it by raising."""
    if len(intake.demos) >= num_demos:  # none wanted, or all there: a task without an expert will do
        return
    phase = "recording demonstrations"
    status.begin(phase, num_demos, done=len(intake.demos))
    expert = actor()
    while len(intake.demos) < num_demos:
        watch(status)
        if intake.num_hopeful_demos >= num_demos:
            _wait_for_labels(intake, num_demos, status=status, watch=watch, look_up=look_up)
            status.begin(phase, num_demos, done=len(intake.demos))
            continue
        if intake.num_tried_demos >= 3 * num_demos + 10:
            raise FailureError(
                f"only {len(intake.demos)} of {intake.num_tried_demos} demonstrations of task '{task}' succeeded: give it "
                "more time (task.time_limit_s), or lower run.demo_noise"
            )
        episode = run(expert, intake.num_tried_demos)
        if episode:
            intake.take(episode)
        intake.news()
        status.done = len(intake.demos)
    watch(status)


def _wait_for_labels(
    intake: EpisodeIngest, num_demos: int, *, status: RunStatus, watch: StatusListener, look_up: Callable[[], None]
) -> None:
    """All that can be done now is to wait for what is said of them; more are recorded if one is turned down."""
    status.begin("waiting for labels of the demonstrations", num_demos, done=len(intake.demos))
    num_hopeful = intake.num_hopeful_demos
    while len(intake.demos) < num_demos and intake.num_hopeful_demos >= num_hopeful:
        look_up()
        if not intake.news():
            time.sleep(_LOOK_S)
        status.done = len(intake.demos)
        watch(status)
