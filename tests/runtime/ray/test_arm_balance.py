"""ArmBalance: numbers worked out by hand."""

from __future__ import annotations

from dovetail.runtime.ray.roles.permits import ArmBalance


def test_arm_that_is_ahead_waits() -> None:
    balance = ArmBalance(slack_steps=100.0, silent_s=10.0)
    balance.mark_active("quick", {}, 0.0)
    balance.mark_active("slow", {}, 0.0)
    assert not balance.is_ahead("quick", {"quick": 100}, 1.0)
    assert balance.is_ahead("quick", {"quick": 101}, 1.0)
    assert not balance.is_ahead("slow", {"quick": 101}, 1.0)
    assert not balance.is_ahead("quick", {"quick": 101, "slow": 1}, 1.0)


def test_silent_arm_is_not_waited_for() -> None:
    balance = ArmBalance(slack_steps=100.0, silent_s=10.0)
    balance.mark_active("slow", {}, 0.0)
    balance.mark_active("quick", {}, 5.0)
    assert balance.is_ahead("quick", {"quick": 500}, 10.0)
    assert not balance.is_ahead("quick", {"quick": 500}, 10.5)


def test_late_arm_starts_level_with_the_others() -> None:
    balance = ArmBalance(slack_steps=100.0, silent_s=10.0)
    balance.mark_active("early", {"early": 2000}, 0.0)
    balance.mark_active("late", {"early": 2000}, 1.0)
    assert not balance.is_ahead("early", {"early": 2100}, 2.0)
    assert balance.is_ahead("early", {"early": 2101}, 2.0)
    assert not balance.is_ahead("early", {"early": 2101, "late": 1}, 2.0)


def test_short_silence_does_not_reset_the_level() -> None:
    balance = ArmBalance(slack_steps=100.0, silent_s=10.0)
    balance.mark_active("one", {}, 0.0)
    balance.mark_active("two", {}, 0.0)
    steps = {"one": 300, "two": 0}
    balance.mark_active("one", steps, 8.0)
    balance.mark_active("two", steps, 9.0)
    assert balance.is_ahead("one", steps, 9.0)
