from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.core.specs import ArraySpec, RobotSpec
from dovetail.core.types import Episode, Observation, Outcome, Purpose, Segment

ROBOT = RobotSpec(
    name="panda",
    embodiment="arm7",
    observation={"state": ArraySpec(shape=(1,))},
    action=ArraySpec(shape=(1,)),
    action_kind="ee_delta",
    control_hz=10.0,
)


def _make(
    outcome: Outcome, *, judgement: Outcome | None = None, num_steps: int = 3, **columns: list[float]
) -> Episode:
    values: dict[str, Any] = {
        "observation/state": np.zeros((num_steps, 1), np.float32),
        "executed": np.zeros((num_steps, 1), np.float32),
        **{f"reward/{name}": np.array(column, np.float32) for name, column in columns.items()},
    }
    last = Observation(time_ns=0, values={"state": np.zeros(1, np.float32)})
    segment = Segment(episode_id="e1", first=0, final=True, columns=values, last_observation=last)
    return Episode(
        id="e1",
        task="push_cube",
        prompt="",
        robot=ROBOT,
        operator="none",
        purpose=Purpose.ONLINE,
        outcome=outcome,
        judgement=judgement,
        seed=0,
        config_hash="",
        started_unix_ns=0,
        segments=(segment,),
    )


@pytest.fixture(scope="session")
def make_episode() -> Callable[..., Episode]:
    return _make
