"""Checks of what the run learns from: rewards, labels, help, observations, action limits and time."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.learn._coach_changes import (
    LOOK,
    change,
    dense_labels,
    dense_reward,
    factor,
    inputs_with,
    less_help,
    longer_episodes,
    more_demos,
    more_help,
    more_steps,
)
from dovetail.learn._coach_facts import FEW, MANY, UNKNOWN, Change, Facts, Finding, Result, Severity

__all__ = ["DATA_CHECKS", "FALLBACKS", "limits_too_small", "no_reward", "no_success_finding", "reward_not_used"]

_DELAY_TICKS = 3  # the safety filter's default for safety.delay_s
_MAX_REAL_FACTOR = 1.5  # by which advice raises a limit of a real arm at once
_CLOSE = 0.25  # relative difference of two periods that still count as equal
_WAIT_REASONS = {
    "away": "a labeler that does not answer",
    "under way": "a labeler that is slower than the robot",
    "uncertain": "a person, because no labeler is certain",
    "disagreement": "a person, because labelers disagree",
    "new": "a person, who labels every episode",
}


# ---- rewards and labels


def reward_not_used(facts: Facts) -> Result:
    """The task rewards single steps, but the labels, which replay learners learn from, are sparse."""
    known = [one.unused_reward for one in facts.latest(MANY) if one.unused_reward is not None]
    if len(known) < FEW or facts.number("algorithm.gamma") is None:  # imitation needs no reward
        return UNKNOWN
    helped = [one for one in facts.latest(MANY) if one.success]
    if sum(known) < 0.5 * len(known) or 2 * len(helped) > len(known):
        return None
    totals = [one.task_total for one in facts.latest(MANY) if one.task_total is not None]
    return Finding(
        severity=Severity.WARNING,
        cause="The task's reward is not used, because the labels have a reward for success only",
        evidence=(
            f"In {sum(known)} of the last {len(known)} episodes the task rewarded single steps (mean return "
            f"{_mean(totals):.4g}) and the labels did not, and {len(helped)} of them succeeded"
        ),
        changes=(dense_labels(facts), LOOK),
    )


def no_reward(facts: Facts) -> Result:
    latest = facts.latest(2 * MANY)
    if any(episode.rewarded for episode in latest):
        return None
    reasons = (reward_not_used, rewards_disagree, observations_lack_information, limits_too_small, clock_wrong)
    if any(isinstance(check(facts), Finding) for check in reasons):
        return None  # another check says why
    if len(latest) < FEW:
        return UNKNOWN
    num, num_demos = len(latest), facts.demos.num
    which = f"the {num} online episodes so far" if num == facts.num_episodes else f"the last {num} online episodes"
    if not facts.offers.success:
        cause = "Learning has no signal, because every step has the same reward"
    elif num_demos:
        cause = "Learning has almost no signal, because only demonstrations succeed"
    else:
        cause = "Learning has no signal, because there is no success in the data"
    timeouts = sum(bool(episode.timeout) for episode in latest)
    ended = f", {timeouts} of them timed out," if timeouts else ""
    demos, help_, dense, longer = more_demos(facts), more_help(facts), dense_reward(facts), longer_episodes(facts)
    return Finding(
        severity=Severity.WARNING,
        cause=cause,
        evidence=f"None of {which} earned a reward{ended} and there {_demos(num_demos)}",
        changes=(help_, demos, dense, longer, LOOK) if num_demos else (demos, help_, dense, longer, LOOK),
    )


def never_succeeds(facts: Facts) -> Result:
    """No success although there are rewards. Where the return rises, success may not be recognized."""
    if not facts.offers.success or len(facts.episodes) < FEW or facts.num_episodes < 2 * MANY:
        return UNKNOWN if facts.offers.success else None
    if facts.num_successes or any(one.success for one in facts.episodes):
        return None
    others = (no_reward, reward_not_used, observations_lack_information, limits_too_small, clock_wrong)
    if any(isinstance(check(facts), Finding) for check in others):
        return None
    return no_success_finding(facts)


def no_success_finding(facts: Facts) -> Finding:
    """The advice for a run without any success, or without one in its last evaluation, whatever else is known of it."""
    totals, early, num = facts.totals, list(facts.early_totals), facts.num_episodes
    timeouts = sum(bool(one.timeout) for one in facts.episodes)
    failures = sum(bool(one.failed) for one in facts.episodes)
    returns = f", with a mean return of {_mean(totals):.4g}" if totals else ""
    if facts.num_alone:
        cause = "The trained policy does not succeed: the last evaluation has no success"
    elif early and facts.return_rises:
        returns = f", with a mean return that rose from {_mean(early):.4g} to {_mean(totals):.4g}"
        cause = "The policy improves, but no episode counts as a success"
    else:
        cause = "The policy does not succeed without help" if facts.num_successes else "No episode succeeds"
    unread = [key for key in facts.offers.observations if key not in facts.offers.inputs]
    few = num < MANY  # too few to judge
    return Finding(
        severity=Severity.WARNING,
        cause=cause,
        evidence=(
            f"Of {num} online episodes, {facts.num_successes} succeeded, {facts.num_alone} of them without help; there are "
            f"{timeouts} timeouts and {failures} failures among the last {len(facts.episodes)}{returns}"
        ),
        changes=(
            more_steps(facts) if few else None,
            more_demos(facts) if not facts.demos.num else None,
            more_help(facts),
            dense_reward(facts),
            longer_episodes(facts) if timeouts > 0.5 * len(facts.episodes) else None,
            more_demos(facts),
            change(facts, {"policy.inputs": []}) if unread else None,
            more_steps(facts),
            LOOK,
        ),
    )


def return_not_rising(facts: Facts) -> Result:
    """For tasks without success, where the return is all there is."""
    if facts.offers.success:
        return None
    if facts.return_rises is None or facts.num_episodes < 3 * MANY:
        return UNKNOWN
    if facts.return_rises or isinstance(no_reward(facts), Finding) or isinstance(reward_not_used(facts), Finding):
        return None
    early, totals = facts.early_totals, facts.totals
    unread = [key for key in facts.offers.observations if key not in facts.offers.inputs]
    lr = facts.number("algorithm.lr")
    return Finding(
        severity=Severity.HINT,
        cause="The policy does not improve",
        evidence=(
            f"The mean return was {_mean(list(early)):.4g} in the first {len(early)} episodes and is {_mean(totals):.4g} in "
            f"the last {len(totals)} of {facts.num_episodes}"
        ),
        changes=(
            change(facts, {"policy.inputs": []}) if unread else None,
            change(facts, {"algorithm.lr": 3e-4}) if lr and not 1e-4 <= lr <= 3e-3 else None,
            more_steps(facts),
            LOOK,
        ),
    )


def labels_waiting(facts: Facts) -> Result:
    """Episodes without labels are not learned from."""
    num = sum(facts.waiting.values())
    if num < FEW and not (num >= 3 and not facts.episodes):
        return None
    most = max(facts.waiting, key=lambda why: facts.waiting[why])
    if num < 0.2 * facts.num_episodes and most != "away":  # a small backlog is harmless
        return None
    reasons = [f"{count} for {_WAIT_REASONS.get(why, why)}" for why, count in facts.waiting.items() if count]
    none_labeled = not facts.episodes
    console = Change(command="dovetail console {run}")
    slow = factor(facts, "labeling.max_labeling_episodes", 2.0, at_most=64) if most == "under way" else None
    return Finding(
        severity=Severity.WARNING if none_labeled else Severity.HINT,
        cause="Episodes without labels are not learned from",
        evidence=(
            f"{num} of {facts.num_episodes} episodes wait for labels: {', '.join(reasons)}"
            + ("; no online episode has labels" if none_labeled else "")
        ),
        changes=(slow, console),
    )


def rewards_disagree(facts: Facts) -> Result:
    judged = [episode for episode in facts.latest(MANY) if episode.solved is not None]
    missed = sum(bool(episode.solved) and not episode.success for episode in judged)
    invented = sum(episode.success and not episode.solved for episode in judged)
    outcome = change(facts, {"labels": [{"type": "outcome"}]}) if not _is_outcome(facts) else None
    if len(judged) >= FEW and missed + invented >= 0.2 * len(judged):
        return Finding(
            severity=Severity.WARNING,
            cause="The labels are wrong",
            evidence=(
                f"The labels of {missed + invented} of the last {len(judged)} episodes contradict their outcome: "
                f"{missed} successes labeled as failures, {invented} failures labeled as successes"
            ),
            changes=(outcome, Change(command="dovetail label {run} --agreement")),
        )
    won = [episode.value for episode in judged if episode.solved and episode.value is not None]
    lost = [episode.value for episode in judged if not episode.solved and episode.value is not None]
    if min(len(won), len(lost)) >= 3 and _mean(won) <= _mean(lost):
        sparse = {"labels": [{"type": "outcome"}]}
        return Finding(
            severity=Severity.WARNING,
            cause="The rewards teach the policy not to succeed",
            evidence=(
                f"Of the last {len(judged)} episodes, successes had a mean return of {_mean(won):.2f} and failures "
                f"{_mean(lost):.2f}"
            ),
            changes=(
                change(facts, {**sparse, "task.reward": "sparse"}),
                None if _is_outcome(facts) else change(facts, sparse),
                Change(command="dovetail label {run} --agreement"),
            ),
        )
    return None if len(judged) >= FEW else UNKNOWN


def _is_outcome(facts: Facts) -> bool:
    """Whether the task's outcome is the only reward already."""
    labels = facts.settings.get("labels")
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], Mapping):
        return False
    (one,) = labels
    return one.get("type") == "outcome" and not one.get("dense") and not one.get("stages")


# ---- help


def help_not_falling(facts: Facts) -> Result:
    """Much help for a long time. Less than that comes and goes in a healthy run."""
    early, latest = facts.early_human, facts.latest(MANY)
    if early is None or len(latest) < MANY or facts.num_episodes < 3 * MANY:
        return UNKNOWN
    now = _mean([episode.human_share for episode in latest])
    if now < 0.3 or now < 0.9 * early:
        return None
    return Finding(
        severity=Severity.HINT,
        cause="People help too much, so the policy "
        + ("gets no chance to act alone" if facts.going_well else "does not learn to act alone"),
        evidence=(
            f"People took {100 * now:.0f} % of the steps in the last {MANY} episodes and {100 * early:.0f} % in the first "
            f"{MANY}"
        ),
        changes=(less_help(facts), factor(facts, "operator.max_takeover_steps", 0.5), LOOK),
    )


def help_too_late(facts: Facts) -> Result:
    """People take over in most episodes, near the end, and the episodes fail all the same."""
    latest = facts.latest(MANY)
    starts = [one.first_help for one in latest if one.first_help is not None]
    if len(latest) < FEW:
        return UNKNOWN
    if 2 * len(starts) < len(latest) or facts.success >= 0.5 or _mean(starts) < 0.6:
        return None
    steps = facts.number("operator.stuck_after_steps")
    sooner = None
    if steps is not None:  # so much sooner that a third of the episode is left for help
        sooner = change(facts, {"operator.stuck_after_steps": max(1, round(steps * 0.25))})
    return Finding(
        severity=Severity.HINT,
        cause="People help too late to save an episode",
        evidence=(
            f"In {len(starts)} of the last {len(latest)} episodes people took over, on average after "
            f"{100 * _mean(starts):.0f} % of the episode, and {100 * facts.success:.0f} % succeeded"
        ),
        changes=(sooner, longer_episodes(facts), LOOK),
    )


# ---- observations and actions


def observations_lack_information(facts: Facts) -> Result:
    """The demonstrators' actions follow from an observation that the policy does not read."""
    explained = facts.demos.explained
    if "" not in explained or len(facts.episodes) < FEW:
        return UNKNOWN
    if facts.going_well or facts.success >= 0.75:
        return None
    now, others = explained[""], {key: share for key, share in explained.items() if key}
    best = max(others, key=lambda key: others[key], default="")
    unread = [key for key in facts.offers.cameras if key not in facts.offers.inputs]
    if best and now < 0.65 and others[best] > now + 0.2:
        detail = f", and {100 * _share(others[best]):.0f} % together with '{best}'"
        changes: tuple[Change | None, ...] = (inputs_with(facts, best),)
    elif now < 0.1 and facts.success < 0.5 and facts.demos.num >= FEW:
        detail, changes = "", (inputs_with(facts, unread[0]) if unread else None, _history(facts), LOOK)
    else:
        return None
    return Finding(
        severity=Severity.WARNING,
        cause="The policy's observations lack information that the demonstrator uses",
        evidence=(
            f"The policy's inputs explain {100 * _share(now):.0f} % of the variance of demonstrated actions{detail}, and "
            f"{facts.result}"
        ),
        changes=changes,
    )


def _history(facts: Facts) -> Change | None:
    """Past observations, for what a single one does not show."""
    if facts.settings.get("policy.history") != {} or not facts.offers.inputs:
        return None
    return change(facts, {"policy.history": {facts.offers.inputs[0]: 4}})


def limits_too_small(facts: Facts) -> Result:
    """The safety filter changes most actions, or even people drive at the limits and run out of time."""
    latest = facts.latest(FEW)
    if len(latest) < FEW or all(not one.clipped and one.human_saturated is None for one in latest):
        return UNKNOWN
    if facts.going_well:
        return None
    limits = sorted({name for one in latest for name in one.clipped})
    clipped = {name: _mean([one.clipped.get(name, 0.0) for one in latest]) for name in limits}
    most = max(clipped, key=lambda name: clipped[name], default="")
    ratios = [one.clip_ratio for one in latest if one.clip_ratio is not None]
    # the robot's own limits of an action stay; the limits of a real arm grow in small steps, with a person who looks at it
    most_by = _MAX_REAL_FACTOR if facts.offers.real_time else 100.0
    by = min(most_by, max(1.5, _mean(ratios) if ratios else 3.0))
    larger = [factor(facts, f"safety.{name}", by) for name in ("max_step", "max_velocity")]
    reach = [factor(facts, name, min(most_by, 3.0)) for name in ("robot.max_step_m", "robot.max_turn_rad")]
    robot = (
        Change(settings={k: v for one in reach if one for k, v in one.settings.items()}) if any(reach) else None
    )
    if most and clipped[most] > 0.5:
        return Finding(
            severity=Severity.WARNING,
            cause=f"The action limits are too small: the safety filter's {most} limit changes most actions",
            evidence=(
                f"The safety filter clipped {100 * clipped[most]:.0f} % of the steps of the last {FEW} episodes, and "
                f"{facts.result}"
            ),
            changes=(_larger_workspace(facts), LOOK) if most == "workspace" else (*larger, robot, LOOK),
        )
    driven = [one for one in latest if one.human_share >= 0.5 and one.human_saturated is not None]
    at_limit = _mean([one.human_saturated or 0.0 for one in driven])
    timeouts = sum(bool(one.timeout) for one in driven)
    if len(driven) < 0.5 * len(latest) or at_limit < 0.9 or timeouts < 0.6 * len(driven):
        return None
    return Finding(
        severity=Severity.WARNING,
        cause="The action limits are too small: people drive at full speed and still run out of time",
        evidence=(
            f"People drove most of {len(driven)} of the last {len(latest)} episodes, {100 * at_limit:.0f} % of their "
            f"actions were at a limit, and {timeouts} of these episodes timed out"
        ),
        changes=(robot, *larger, longer_episodes(facts), LOOK),
    )


def _larger_workspace(facts: Facts) -> Change | None:
    """The box, half as large again on each side except below, where the table is. None for a real arm: a person decides."""
    if facts.offers.real_time:
        return None
    low, high = facts.settings.get("safety.workspace.low"), facts.settings.get("safety.workspace.high")
    if not isinstance(low, list) or not isinstance(high, list):
        return None
    margin = [0.5 * (b - a) for a, b in zip(low, high, strict=True)]
    new_low = [round(a - m, 3) if axis < 2 else a for axis, (a, m) in enumerate(zip(low, margin, strict=True))]
    new_high = [round(b + m, 3) for b, m in zip(high, margin, strict=True)]
    return change(facts, {"safety.workspace.low": new_low, "safety.workspace.high": new_high})


# ---- time


def clock_wrong(facts: Facts) -> Result:
    """Measured ticks and delays do not match the settings that learning and the safety filter assume."""
    latest, hz = facts.latest(5), facts.offers.control_hz
    periods = [one.period_s for one in latest if one.period_s is not None]
    if hz is None or len(periods) < 5:
        return UNKNOWN
    period_s, late = _mean(periods), _mean([one.late or 0.0 for one in latest])
    if abs(period_s * hz - 1.0) > _CLOSE:
        return Finding(
            severity=Severity.WARNING,
            cause="The robot's clock and its control rate do not match",
            evidence=(
                f"A tick takes {1000 * period_s:.1f} ms by the robot's own clock in the last {len(periods)} episodes, and "
                f"{1000 / hz:.1f} ms by the control rate of {hz:g} Hz"
            ),
            changes=(
                change(facts, {"robot.control_hz": float(f"{1.0 / period_s:.3g}")}),
                Change(command="dovetail doctor {run}/config.yaml"),
            ),
        )
    if late > 0.2:
        return Finding(
            severity=Severity.WARNING,
            cause="The control loop is late, so actions last longer than the policy expects",
            evidence=f"{100 * late:.0f} % of the ticks of the last {len(latest)} episodes took 1.5 periods or more",
            changes=(
                change(facts, {"actor.layout": "processes"}),
                change(facts, {"robot.control_hz": float(f"{0.5 * hz:.3g}")}),
                Change(command="dovetail doctor {run}/config.yaml"),
            ),
        )
    delays = [one.delay_ticks for one in facts.latest(FEW) if one.delay_ticks is not None]
    expected_s = facts.number("safety.delay_s")
    expected = _DELAY_TICKS if expected_s is None else expected_s * hz
    if len(delays) < 5 or sorted(delays)[len(delays) // 2] <= expected + 0.5:
        return None
    delay = sorted(delays)[len(delays) // 2]
    return Finding(
        severity=Severity.WARNING,
        cause="The robot moves later than the configured delay",
        evidence=(
            f"A command shows in the observations after {delay:.0f} ticks ({1000 * delay / hz:.0f} ms) in the median of "
            f"{len(delays)} episodes, and {expected:.0f} ticks are expected"
        ),
        changes=(change(facts, {"safety.delay_s": float(f"{delay / hz:.3g}")}), LOOK),
    )


DATA_CHECKS = (
    reward_not_used,
    no_reward,
    labels_waiting,
    rewards_disagree,
    observations_lack_information,
    limits_too_small,
    clock_wrong,
    help_not_falling,
    help_too_late,
)
FALLBACKS = (return_not_rising, never_succeeds)
"""For runs that no other check explains."""


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _demos(num: int) -> str:
    return "is 1 demonstration" if num == 1 else f"are {num} demonstrations"


def _mean(values: list[float]) -> float:
    mean = sum(values) / len(values) if values else 0.0
    return mean if abs(mean) >= 1e-6 else 0.0  # what rounding leaves of a zero
