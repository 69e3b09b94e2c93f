"""Arms that keep step where time is simulated: hand-worked numbers."""

from __future__ import annotations

from dovetail.runtime.ray.roles.permits import ArmBalance


def test_who_is_too_far_ahead_waits_for_the_others() -> None:
    pace = ArmBalance(slack_steps=100.0, silent_s=10.0)
    pace.hear("quick", {}, 0.0)
    pace.hear("slow", {}, 0.0)
    assert not pace.is_ahead("quick", {"quick": 100}, 1.0)
    assert pace.is_ahead("quick", {"quick": 101}, 1.0)
    assert not pace.is_ahead("slow", {"quick": 101}, 1.0)
    assert not pace.is_ahead("quick", {"quick": 101, "slow": 1}, 1.0)


def test_nobody_waits_for_one_that_is_silent() -> None:
    pace = ArmBalance(slack_steps=100.0, silent_s=10.0)
    pace.hear("slow", {}, 0.0)
    pace.hear("quick", {}, 5.0)
    assert pace.is_ahead("quick", {"quick": 500}, 10.0)
    assert not pace.is_ahead("quick", {"quick": 500}, 10.5)


def test_who_comes_late_begins_where_the_others_are() -> None:
    pace = ArmBalance(slack_steps=100.0, silent_s=10.0)
    pace.hear("early", {"early": 2000}, 0.0)
    pace.hear("late", {"early": 2000}, 1.0)
    assert not pace.is_ahead("early", {"early": 2100}, 2.0)
    assert pace.is_ahead("early", {"early": 2101}, 2.0)
    assert not pace.is_ahead("early", {"early": 2101, "late": 1}, 2.0)


def test_a_short_silence_is_no_head_start() -> None:
    pace = ArmBalance(slack_steps=100.0, silent_s=10.0)
    pace.hear("one", {}, 0.0)
    pace.hear("two", {}, 0.0)
    steps = {"one": 300, "two": 0}
    pace.hear("one", steps, 8.0)
    pace.hear("two", steps, 9.0)
    assert pace.is_ahead("one", steps, 9.0)
