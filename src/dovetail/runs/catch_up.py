"""Does the updates that a resumed learner is behind: a kill lost them, or its checkpoint was deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.core.types import Purpose
from dovetail.learn.learner import Learner
from dovetail.runs.experience import EpisodeRecord, Experience
from dovetail.runs.folder import RunFolder
from dovetail.runs.status import RunStatus

__all__ = ["catch_up"]


def catch_up(
    learner: Learner,
    records: Sequence[EpisodeRecord],
    *,
    folder: RunFolder,
    experience: Experience,
    status: RunStatus,
    on_update: Callable[[], None],
    publish: Callable[[], None],
) -> None:
    """Learn from each recorded episode before the replay holds the next, so that the result equals an uninterrupted run."""
    phase = (status.phase, status.total)
    owed = learner.owed(status.trained_steps)
    if owed <= 0:
        return
    folder.event("catching up", updates=owed)
    status.begin("catching up with the episodes", owed)
    online = [place for place, one in enumerate(records) if one.info.purpose is Purpose.ONLINE and one.trains]
    steps = np.cumsum([records[place].info.num_steps for place in online])
    behind = [int(n) for n in np.flatnonzero([learner.owed(int(total)) > 0 for total in steps])]
    if len(behind) > 1:
        experience.rewind(list(records[: online[behind[0]] + 1]))
    for number in behind:
        if number != behind[0]:
            for one in records[online[number - 1] + 1 : online[number] + 1]:
                if one.trains:
                    experience.add_recorded(one)
        status.metrics |= learner.step(env_steps=int(steps[number]), on_update=on_update)
        if number != behind[-1]:
            publish()
    if len(behind) > 1:
        experience.fill()  # with episodes that were recorded or labeled since
    status.begin(*phase, done=status.env_steps)
