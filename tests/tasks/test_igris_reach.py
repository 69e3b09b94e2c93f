"""The task `igris_reach` and its expert, on observations made by hand. The recipe's test runs it on the emulator."""

import numpy as np
import pytest

from dovetail.core.types import Observation, Outcome
from dovetail.tasks.igris_reach import IgrisReach, IgrisReachConfig

TICK_NS = 50_000_000


def seen(tick: int, *, left: float = 0.0, right: float = 0.0, finger: float = 0.0) -> Observation:
    """Each side is away from its target by so many rad."""
    arms = np.array([left] * 6 + [right] * 6, np.float32)
    return Observation(
        time_ns=1 + tick * TICK_NS,
        values={
            "joint_pos": arms,
            "finger_pos": np.full(12, 0.5 + finger, np.float32),
            "arm_target": np.zeros(12, np.float32),
            "finger_target": np.full(12, 0.5, np.float32),
        },
    )


def make(**settings: object) -> IgrisReach:
    return IgrisReach(IgrisReachConfig.from_mapping(settings))


def judge(task: IgrisReach, observation: Observation) -> Outcome | None:
    return task.judge(None, observation, num_steps=1).outcome  # type: ignore[arg-type]


def test_success_needs_both_sides_and_all_fingers_for_the_hold_time() -> None:
    task = make(hold_s=0.1)
    assert judge(task, seen(0)) is None
    assert judge(task, seen(1)) is None
    assert judge(task, seen(2)) is Outcome.SUCCESS
    for off in ({"left": 0.06}, {"right": -0.06}, {"finger": 0.2}):
        task.reset(None, rng=np.random.default_rng(0))  # type: ignore[arg-type]
        assert [judge(task, seen(tick, **off)) for tick in range(5)] == [None] * 5


def test_an_episode_is_a_timeout_after_its_time_limit() -> None:
    task = make(time_limit_s=1.0)
    assert judge(task, seen(0, left=1.0)) is None
    assert judge(task, seen(19, left=1.0)) is None
    assert judge(task, seen(20, left=1.0)) is Outcome.TIMEOUT


def test_the_expert_reaches_the_target_in_steps_of_5_degrees() -> None:
    expert = make().expert()
    expert.reset(np.random.default_rng(0), noise=0.0)
    here = seen(0, left=0.5, right=-0.02, finger=0.3)
    action = expert.act(here)
    assert action[:6] == pytest.approx(0.5 - 0.087)
    assert action[6:12] == pytest.approx(0.0, abs=1e-6)
    assert action[12:] == pytest.approx(0.65)
    assert expert.progress(seen(1)) > expert.progress(here)


def test_the_worse_side_is_taken_over() -> None:
    expert = make(takeover_side="worse").expert()
    left, right = expert.takeover_axes(seen(0, left=0.5)), expert.takeover_axes(seen(0, left=0.1, right=-0.3))
    assert left is not None
    assert right is not None
    assert np.flatnonzero(left).tolist() == [*range(6), *range(12, 18)]
    assert np.flatnonzero(right).tolist() == [*range(6, 12), *range(18, 24)]
    assert make().expert().takeover_axes(seen(0, left=0.5)) is None


def test_a_wrong_finger_counts_for_the_worse_side() -> None:
    """Left arm off by 0.02 of 0.05 rad, right hand off by 0.2 of 0.1."""
    observation = seen(0, left=0.02)
    observation.values["finger_pos"][8] += 0.2
    axes = make(takeover_side="worse").expert().takeover_axes(observation)
    assert axes is not None and np.flatnonzero(axes).tolist() == [*range(6, 12), *range(18, 24)]
