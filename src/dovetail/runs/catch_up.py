"""What the log holds and the checkpoint does not know of: a kill lost it, or somebody deleted it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.core.types import Purpose
from dovetail.learn.learner import Learner
from dovetail.runs.experience import Experience, Known
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus

__all__ = ["catch_up"]


def catch_up(
    learner: Learner,
    before: Sequence[Known],
    *,
    folder: RunFolder,
    experience: Experience,
    status: RunStatus,
    on_update: Callable[[], None],
    publish: Callable[[], None],
) -> None:
    """Episode by episode of those that were there `before`, each learned from before replay holds the next one: so it
    comes out as if nothing had happened."""
    phase = (status.phase, status.total)
    owed = learner.owed(status.trained_steps)
    if owed <= 0:
        return
    folder.event("catching up", updates=owed)
    status.begin("catching up with the episodes", owed)
    practised = [place for place, one in enumerate(before) if one.info.purpose is Purpose.ONLINE and one.trains]
    steps = np.cumsum([before[place].info.num_steps for place in practised])
    behind = [int(n) for n in np.flatnonzero([learner.owed(int(sum_)) > 0 for sum_ in steps])]
    if len(behind) > 1:
        experience.rewind(list(before[: practised[behind[0]] + 1]))
    for number in behind:
        if number != behind[0]:
            for one in before[practised[number - 1] + 1 : practised[number] + 1]:
                if one.trains:
                    experience.add_known(one)
        status.metrics |= learner.step(env_steps=int(steps[number]), on_update=on_update)
        if number != behind[-1]:
            publish()
    if len(behind) > 1:
        experience.fill()  # with what was labelled, or recorded, since then
    status.begin(*phase, done=status.env_steps)
