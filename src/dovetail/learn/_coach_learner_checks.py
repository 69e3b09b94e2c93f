"""Checks of the learner: critic, actor, the data in its batches, its updates and the weights that it publishes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dovetail.learn._coach_changes import (
    LOOK,
    change,
    closer_to_people,
    cooler,
    dense_reward,
    factor,
    fewer_updates,
    less_help,
    more_demos,
    more_entropy,
    more_help,
    more_steps,
)
from dovetail.learn._coach_data_checks import limits_too_small, no_reward, reward_not_used
from dovetail.learn._coach_facts import FEW, MANY, UNKNOWN, Change, Facts, Finding, Result, Severity

__all__ = ["LEARNER_CHECKS"]

_DEFAULT_LR, _DEFAULT_STD = 3e-4, 0.5
_MIN_UPDATES = 500  # before a critic is expected to fit


# ---- critic


def q_above_returns(facts: Facts) -> Result:
    """Compare the critic's mean over its batches with the mean return-to-go of the best episode, which no policy can exceed
    by more than a share of the range of returns."""
    q, best, lowest = facts.metrics.get("q"), facts.best_value, facts.lowest_value
    if q is None or best is None or lowest is None:
        return UNKNOWN
    value_range = max(best - lowest, facts.largest_reward) or 1.0
    bounds = facts.settings.get("algorithm.target_range")
    low, high = bounds if isinstance(bounds, list) else (-math.inf, math.inf)
    at_bound = q > high - 0.02 * (high - low) and best < high - 0.1 * (high - low)
    # a new critic is near 0, and falls slowly where all returns are negative
    if q <= max(best, 0.0) + 0.3 * value_range and not at_bound:
        return None
    return Finding(
        severity=Severity.WARNING,
        cause="The critic overestimates values",
        evidence=f"The critic expects a return of {q:.2f} on average, and the best episode had {best:.2f}",
        changes=(
            change(facts, {"algorithm.backup_entropy": False}),
            _covering_range(facts, lowest, best) if not at_bound else None,
            fewer_updates(facts),
            cooler(facts),
            factor(facts, "algorithm.num_critics", 2.0, at_most=10),
            LOOK,
        ),
    )


def _covering_range(facts: Facts, lowest: float, best: float) -> Change | None:
    """A target range with the returns so far and that of a success. None if that is not known: a smaller range would hide
    the first success from the critic."""
    highest = best if facts.highest_value is None else facts.highest_value
    if facts.offers.success:
        success = _success_return(facts)
        if success is None and not facts.num_successes and not facts.demos.num:
            return None
        highest = max(highest, success or 0.0)
    possible = [_outward(lowest, -1.0), _outward(max(highest, lowest + 1e-3), 1.0)]
    return change(facts, {"algorithm.target_range": possible})


def _success_return(facts: Facts) -> float | None:
    """The largest return of a success by the settings of the labels. Dense labels have the task's rewards: 1, and progress
    of at most 1 with `task.reward: dense`; None for a task whose rewards are not known."""
    labels = facts.settings.get("labels")
    known = [one for one in labels if isinstance(one, Mapping)] if isinstance(labels, Sequence) else []
    if any(one.get("dense") for one in known) and "task.reward" not in facts.settings:
        return None
    progress = 1.0 if facts.settings.get("task.reward") == "dense" else 0.0
    returns = [
        (1.0 + progress if one.get("dense") else float(one.get("success_reward", 1.0)))
        + sum(max(0.0, float(stage["reward"])) for stage in one.get("stages") or ())
        for one in known
    ]
    return max(returns, default=1.0)


def _outward(value: float, sign: float) -> float:
    """Round to one digit after the point of its magnitude, away from the other bound: the returns of a sparse reward give
    0 and 1."""
    if abs(value) < 1e-9:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{sign * math.ceil(sign * value / unit - 1e-9) * unit:.3g}")


def critic_does_not_fit(facts: Facts) -> Result:
    """The critic's error on its own targets is as large as if it knew nothing but their mean."""
    loss, variance = facts.metrics.get("critic_loss"), facts.metrics.get("target_variance")
    if loss is None or variance is None or facts.updates is None or facts.updates < _MIN_UPDATES:
        return UNKNOWN
    if not facts.largest_reward:  # nothing to fit
        return UNKNOWN
    constant = variance <= (0.01 * facts.largest_reward) ** 2
    if constant or loss <= 0.9 * variance or facts.going_well:
        return None
    lr = facts.number("algorithm.lr")
    unusual = lr is not None and not 1e-4 <= lr <= 3e-3
    return Finding(
        severity=Severity.WARNING,
        cause="The critic does not fit its targets, so the actor follows noise",
        evidence=(
            f"After {facts.updates} updates its squared error is {loss:.3g}, and the variance of the targets is "
            f"{variance:.3g}"
        ),
        changes=(
            change(facts, {"algorithm.lr": _DEFAULT_LR}) if unusual else None,
            factor(facts, "learner.utd", 2.0, at_most=8.0),
            factor(facts, "algorithm.tau", 0.5, at_least=0.001),
            LOOK,
        ),
    )


def values_explain_nothing(facts: Facts) -> Result:
    explained, num_rollouts = facts.metrics.get("explained_variance"), facts.updates or 0
    if explained is None or len(facts.episodes) < min(FEW, facts.num_episodes):  # after a resume
        return UNKNOWN
    if explained > 0.05 or num_rollouts < MANY or facts.going_well:
        return None
    value_coef = facts.number("algorithm.value_coef") or 0.0
    return Finding(
        severity=Severity.HINT,
        cause="The critic does not fit the returns, so advantages are mostly noise",
        evidence=(
            f"After {num_rollouts} rollouts the value network explains {max(0.0, 100 * explained):.0f} % of the variance "
            "of returns"
        ),
        changes=(
            change(facts, {"algorithm.value_coef": max(0.5, value_coef), "algorithm.value_lr": 1e-3}),
            factor(facts, "algorithm.rollout_steps", 2.0),
            dense_reward(facts),
            LOOK,
        ),
    )


# ---- actor


def entropy_collapsed(facts: Facts) -> Result:
    """The entropy is far below its target, or the standard deviation per action value is tiny."""
    entropy, target, num = (*map(facts.metrics.get, ("entropy", "target_entropy")), facts.num_actions)
    if entropy is None or not num or len(facts.episodes) < FEW:
        return UNKNOWN
    if facts.going_well:
        return None
    std = math.exp(entropy / num - 0.5 * math.log(2 * math.pi * math.e))
    below_target = target is not None and entropy < target - max(num, abs(target))
    if std >= 0.03 and not below_target:
        return None
    initial_std = facts.number("policy.initial_std")
    detail = "" if target is None else f" (the target is {target:.1f})"
    return Finding(
        severity=Severity.HINT,
        cause="The actor has collapsed: it hardly explores",
        evidence=(
            f"The entropy is {entropy:.1f}{detail}, a standard deviation of {100 * std:.1f} % of an action's range, and "
            f"{facts.result}"
        ),
        changes=(
            change(facts, {"policy.initial_std": _DEFAULT_STD}) if (initial_std or 1.0) < 0.1 else None,
            more_entropy(facts),
            cooler(facts),
            LOOK,
        ),
    )


def saturated(facts: Facts) -> Result:
    shares = [episode.saturated for episode in facts.latest(FEW) if episode.saturated is not None]
    if len(shares) < FEW:
        return UNKNOWN
    share = sum(shares) / len(shares)
    if share <= 0.8 or facts.going_well or isinstance(limits_too_small(facts), Finding):
        return None
    return Finding(
        severity=Severity.HINT,
        cause="The actor has collapsed to the action limits: it acts at full speed only",
        evidence=f"{100 * share:.0f} % of the action values in the last {FEW} episodes are at a limit, and {facts.result}",
        changes=(
            change(facts, {"algorithm.lr": _DEFAULT_LR}) if (facts.number("algorithm.lr") or 0.0) > 3e-3 else None,
            closer_to_people(facts),
            more_entropy(facts),
            more_demos(facts),
            cooler(facts),
            LOOK,
        ),
    )


def policy_jumps(facts: Facts) -> Result:
    kl, clipped = facts.metrics.get("kl"), facts.metrics.get("clip_fraction")
    if kl is None or clipped is None:
        return UNKNOWN
    if (kl <= 0.1 and clipped <= 0.5) or isinstance(
        entropy_collapsed(facts), Finding
    ):  # a tiny std has a large KL
        return None
    lr = facts.number("algorithm.lr")
    return Finding(
        severity=Severity.HINT,
        cause="Each update changes the policy too much",
        evidence=f"The KL divergence is {kl:.2f}, and {100 * clipped:.0f} % of the steps are clipped",
        changes=(
            change(facts, {"algorithm.lr": _DEFAULT_LR}) if lr is not None and lr > 1e-3 else None,
            change(facts, {"algorithm.target_kl": 0.02}),
            cooler(facts),
            factor(facts, "algorithm.num_epochs", 0.5),
            LOOK,
        ),
    )


# ---- data in the batches


def one_source(facts: Facts) -> Result:
    """For learners with a critic: imitation is meant to have one source."""
    if "q" not in facts.metrics or len(facts.episodes) < FEW or not facts.sources:
        return UNKNOWN
    source, share = max(facts.sources.items(), key=lambda item: item[1])
    uses_prior = facts.settings.get("algorithm.prior_fraction")
    if share <= 0.9:
        return None
    known = isinstance(no_reward(facts), Finding) or isinstance(reward_not_used(facts), Finding)  # say more
    if source == "policy" and (not uses_prior or facts.success >= 0.5 or not facts.offers.demos or known):
        return None
    changes = {
        "demo": (change(facts, {"algorithm.prior_fraction": 0.5}), more_steps(facts)),
        "human": (less_help(facts), factor(facts, "operator.max_takeover_steps", 0.5)),
        "policy": (more_demos(facts), more_help(facts)),
    }
    causes = {
        "demo": "The critic learns nothing about what the policy does",
        "human": "The critic learns almost nothing about what the policy does",
        "policy": "Nothing shows the policy a better way",
    }
    what = {"demo": "from demonstrations", "human": "a person's", "policy": "the policy's own"}[source]
    return Finding(
        severity=Severity.HINT,
        cause=causes[source],
        evidence=f"{100 * share:.0f} % of the steps in a batch are {what}",
        changes=(*changes[source], LOOK),
    )


def out_of_range(facts: Facts) -> Result:
    latest = facts.latest(5)
    shares: dict[str, list[float]] = {}
    for episode in latest:
        for key, share in episode.outside.items():
            shares.setdefault(key, []).append(share)
    found = {key: sum(values) / len(values) for key, values in shares.items() if len(values) == 5}
    if not found:
        return UNKNOWN
    if facts.going_well:
        return None
    key, share = max(found.items(), key=lambda item: item[1])
    if share <= 0.25:
        return None
    inputs = facts.offers.inputs
    return Finding(
        severity=Severity.WARNING,
        cause=f"Observation '{key}' is far outside the range that normalization was fitted to",
        evidence=f"Normalization clips {100 * share:.0f} % of the values of '{key}' in the last 5 episodes",
        changes=(
            more_demos(facts),
            change(facts, {"policy.inputs": [one for one in inputs if one != key]}) if len(inputs) > 1 else None,
            LOOK,
        ),
    )


# ---- updates and weights


def updates_starving(facts: Facts) -> Result:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed < 100 or facts.owed <= facts.updates:
        return None
    has_data = facts.demos.num or facts.settings.get("algorithm.demo_share") is None
    return Finding(
        severity=Severity.WARNING,
        cause="The learner has no data to draw from, or is too slow",
        evidence=(
            f"{facts.env_steps} online steps have earned {facts.updates + facts.owed} updates, and {facts.updates} are done"
        ),
        changes=(
            None if has_data else more_demos(facts),
            None if has_data else more_help(facts),
            fewer_updates(facts),
            factor(facts, "algorithm.batch_size", 0.5, at_least=16),
            LOOK,
        ),
    )


def updates_racing(facts: Facts) -> Result:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed > -100 or -facts.owed <= 0.5 * facts.updates:
        return None
    utd = facts.updates / max(1, facts.env_steps)
    return Finding(
        severity=Severity.WARNING,
        cause="The learner repeats the same few steps",
        evidence=(
            f"{facts.updates} updates are done, and {facts.env_steps} online steps have earned "
            f"{facts.updates + facts.owed}"
        ),
        changes=(change(facts, {"learner.utd": float(f"{utd:.3g}")}), LOOK),
    )


def robot_waits(facts: Facts) -> Result:
    """In real time only: a simulated robot may wait."""
    if facts.act_s is None or facts.learn_s is None or facts.num_episodes < FEW:
        return UNKNOWN
    if facts.learn_s <= 3.0 * facts.act_s:
        return None
    share = facts.learn_s / (facts.learn_s + facts.act_s)
    utd = facts.act_s / facts.learn_s  # learning then takes as long as acting
    return Finding(
        severity=Severity.HINT,
        cause="The robot waits for the learner",
        evidence=f"It waits {100 * share:.0f} % of the time",
        changes=(
            factor(facts, "learner.utd", utd, at_least=0.05),
            factor(facts, "algorithm.batch_size", 0.5, at_least=16),
            LOOK,
        ),
    )


def stale_weights(facts: Facts) -> Result:
    """By versions or, if weights are hardly published, by updates: as many as ten episodes earn."""
    if facts.settings.get("deploy.gate") is not None:  # the arm acts with the deployed weights, as intended
        return None
    behind = [episode.versions_behind for episode in facts.latest(3) if episode.versions_behind is not None]
    unpublished, utd = facts.unpublished or 0, facts.number("learner.utd")
    earned = 0.0 if utd is None else utd * facts.env_steps / max(1, facts.num_episodes)
    if facts.num_episodes >= FEW and unpublished >= max(100.0, 10 * earned):
        age = f"{unpublished} updates"
    elif len(behind) < 3:
        return UNKNOWN
    elif min(behind) < 10:
        return None
    else:
        age = f"{behind[-1]} versions"
    pinned = "" if facts.pinned is None else f", and version {facts.pinned} is pinned"
    return Finding(
        severity=Severity.WARNING,
        cause="The robot acts with old weights and does not benefit from learning",
        evidence=f"Its weights are {age} old{pinned}",
        changes=(
            Change(command="rm {run}/weights/pin.json") if facts.pinned is not None else None,
            change(facts, {"learner.publish_every": None}),
            change(facts, {"actor.swap_weights": "chunk"}),
            fewer_updates(facts),
            LOOK,
        ),
    )


LEARNER_CHECKS = (
    q_above_returns,
    critic_does_not_fit,
    entropy_collapsed,
    saturated,
    one_source,
    updates_starving,
    updates_racing,
    robot_waits,
    stale_weights,
    out_of_range,
    values_explain_nothing,
    policy_jumps,
)
