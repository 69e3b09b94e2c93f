"""History is counted in ticks, left-padded and masked; fifty ticks of a bimanual robot included."""

import numpy as np

from dovetail.actor.history import History
from dovetail.core.specs import ArraySpec, PolicySpec
from dovetail.core.types import Observation


def observation(tick):
    return Observation(
        time_ns=tick, values={"proprio": np.full(24, tick, np.float32), "force": np.full(2, -tick, np.float32)}
    )


def make(num):
    spec = PolicySpec(
        name="p",
        observation={"proprio": ArraySpec(shape=(24,)), "force": ArraySpec(shape=(2,))},
        action=ArraySpec(shape=(24,)),
        action_kind="joint_target",
        history={"proprio": num},
    )
    return History(spec)


def test_padding_comes_first_and_is_masked():
    history = make(4)
    for tick in (1, 2):
        history.add(observation(tick))
    seen = history.batch(observation(2))
    assert seen["proprio"].shape == (1, 4, 24)
    assert seen["proprio"][0, :, 0].tolist() == [1, 1, 1, 2]
    assert seen["proprio/mask"].tolist() == [[False, False, True, True]]
    assert seen["force"].shape == (1, 2)  # a key without history is seen once
    assert "force/mask" not in seen


def test_the_window_moves_and_a_reset_forgets():
    history = make(50)
    for tick in range(80):
        history.add(observation(tick))
    seen = history.batch(observation(79))
    assert seen["proprio"][0, :, 0].tolist() == list(range(30, 80))
    assert seen["proprio/mask"].all()
    history.reset()
    history.add(observation(99))
    seen = history.batch(observation(99))
    assert seen["proprio"][0, :, 0].tolist() == [99] * 50  # nothing of the last episode
    assert seen["proprio/mask"].sum() == 1
