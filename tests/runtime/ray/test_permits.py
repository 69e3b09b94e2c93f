"""Who may practise next: hand-worked numbers."""

from __future__ import annotations

from dovetail.runtime.ray.roles.store import _Pupil
from dovetail.runtime.ray.roles.permits import EpisodePermits


def tickets(**changes: float) -> EpisodePermits:
    settings = {"utd": 4.0, "start_after_steps": 100, "max_steps_ahead": 50, "max_steps": 1000} | changes
    return EpisodePermits(**settings)  # type: ignore[arg-type]


def test_episodes_are_numbered_over_all_arms() -> None:
    desk = tickets()
    assert [desk.take(real_time=False).index for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]


def test_simulated_arms_wait_for_the_learner_and_real_ones_do_not() -> None:
    desk = tickets()
    desk.env_steps = desk.trained_steps = 150  # 50 steps that earned updates: as far behind as it may be
    assert desk.behind_steps == 50.0
    assert desk.take(real_time=False) is not None
    desk.trained_steps = 151
    assert desk.take(real_time=False) is None
    assert desk.take(real_time=True) is not None
    desk.updates = 4  # of one step
    assert desk.take(real_time=False) is not None


def test_nobody_waits_for_a_learner_that_waits_for_data() -> None:
    """HG-DAgger before the first correction: without practice there would never be one."""
    desk = tickets()
    desk.env_steps = desk.trained_steps = 500
    assert desk.take(real_time=False) is None
    desk.waits = True
    assert desk.take(real_time=False) is not None


def test_what_was_practised_ends_it_for_everybody() -> None:
    desk = tickets()
    desk.env_steps = 1000
    assert desk.take(real_time=True) is None


def test_a_learner_that_is_ahead_owes_nothing() -> None:
    desk = tickets()
    desk.trained_steps, desk.updates = 120, 4000
    assert desk.behind_steps == 0.0


def test_an_arm_is_told_whether_its_steps_are_wanted_while_it_runs() -> None:
    desk = tickets()
    assert not desk.take(real_time=True).streams  # type: ignore[union-attr]
    desk.streams = True
    assert desk.take(real_time=True).streams  # type: ignore[union-attr]


def test_the_coach_counts_steps_that_are_learned_from_before_they_have_labels() -> None:
    pupil = _Pupil(utd=1.0, may_owe_steps=200)
    pupil.num_online_updates = 184
    assert pupil.owed(0) == -184  # racing ahead of data
    pupil.streamed_steps = 270
    assert pupil.owed(0) == 0  # well within what it may be behind
