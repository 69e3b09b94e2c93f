"""Episode permits: numbers worked out by hand."""

from __future__ import annotations

from dovetail.runtime.ray.roles.permits import EpisodePermits
from dovetail.runtime.ray.roles.store import RemoteLearnerView


def make_permits(**changes: float) -> EpisodePermits:
    settings = {"utd": 4.0, "start_after_steps": 100, "max_steps_ahead": 50, "max_steps": 1000} | changes
    return EpisodePermits(**settings)  # type: ignore[arg-type]


def test_episodes_are_numbered_over_all_arms() -> None:
    permits = make_permits()
    assert [permits.request(real_time=False).index for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]


def test_simulated_arms_wait_for_the_learner_and_real_arms_do_not() -> None:
    permits = make_permits()
    permits.env_steps = permits.trained_steps = 150  # 50 steps that earned updates: the limit
    assert permits.behind_steps == 50.0
    assert permits.request(real_time=False) is not None
    permits.trained_steps = 151
    assert permits.request(real_time=False) is None
    assert permits.request(real_time=True) is not None
    permits.updates = 4  # of one step
    assert permits.request(real_time=False) is not None


def test_arms_do_not_wait_for_a_learner_that_waits_for_data() -> None:
    """HG-DAgger before the first correction: without episodes there would never be one."""
    permits = make_permits()
    permits.env_steps = permits.trained_steps = 500
    assert permits.request(real_time=False) is None
    permits.learner_waits = True
    assert permits.request(real_time=False) is not None


def test_arms_do_not_wait_for_less_than_a_whole_update() -> None:
    permits = make_permits(utd=0.01, start_after_steps=0)
    permits.trained_steps = 99
    assert permits.request(real_time=False) is not None  # the first update is owed after 100 steps
    permits.trained_steps = 100
    assert permits.request(real_time=False) is None
    permits.updates = 1
    assert permits.request(real_time=False) is not None


def test_no_permits_after_the_last_step() -> None:
    permits = make_permits()
    permits.env_steps = 1000
    assert permits.request(real_time=True) is None


def test_learner_that_is_ahead_is_not_behind() -> None:
    permits = make_permits()
    permits.trained_steps, permits.updates = 120, 4000
    assert permits.behind_steps == 0.0


def test_permit_says_whether_steps_are_streamed() -> None:
    permits = make_permits()
    assert not permits.request(real_time=True).streams  # type: ignore[union-attr]
    permits.streams = True
    assert permits.request(real_time=True).streams  # type: ignore[union-attr]


def test_coach_counts_streamed_steps() -> None:
    learner = RemoteLearnerView(utd=1.0, max_owed_steps=200)
    learner.num_online_updates = 184
    assert learner.owed(0) == -184  # racing ahead of data
    learner.streamed_steps = 270
    assert learner.owed(0) == 0  # well within what it may be behind
