"""What the coach looks for: one function each, by the name that events and curves know it by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dovetail.learn._coach_facts import UNKNOWN, Answer, Facts, Finding, Severity, Tip

__all__ = ["CHECKS"]

FEW, MANY = 10, 20  # episodes: enough to suspect something, enough to compare
GOING_WELL = 0.9  # share of successes beyond which what looks odd is none of our business

SEE_IT = Tip("look at one: dovetail episodes show RUN last")
MORE_DEMOS = Tip("record more demonstrations", "run.demos")
MORE_HELP = Tip("let somebody take over more often", "operator.share")
FEWER_UPDATES = Tip("do fewer updates per step", "learner.utd")
SLOWER = Tip("learn more slowly", "algorithm.lr")


def no_reward(facts: Facts) -> Answer:
    latest = facts.lately(2 * MANY)
    if any(episode.rewarded for episode in latest):
        return None
    if len(latest) < FEW:
        return UNKNOWN
    num = len(latest)
    which = f"the {num} online episodes so far" if num == facts.num_episodes else f"the last {num} online episodes"
    return Finding(
        severity=Severity.WARNING,
        message=f"none of {which} has earned a reward, so there is nothing to learn what is good from",
        tips=(
            MORE_HELP,
            MORE_DEMOS,
            Tip("give each episode more time", "task.time_limit_s"),
            Tip("give each episode more time", "robot.max_steps"),
            Tip("reward progress, not success alone", "task.reward"),
            SEE_IT,
        ),
    )


_WAITS_FOR = {
    "away": "a labeler that does not answer",
    "under way": "a labeler that is slower than the robot",
    "uncertain": "a person, since no labeler is sure",
    "disagreement": "a person, since labelers disagree",
    "new": "a person, who is asked about every one",
}


def labels_waiting(facts: Facts) -> Answer:
    """What has no labels is not learned from; what it waits for can be anything but learning."""
    num = sum(facts.waiting.values())
    if num < FEW and not (num >= 3 and not facts.episodes):
        return None
    most = max(facts.waiting, key=lambda why: facts.waiting[why])
    if num < 0.2 * facts.num_episodes and most != "away":  # a few that stay behind are no harm
        return None
    parts = [f"{count} for {_WAITS_FOR.get(why, why)}" for why, count in facts.waiting.items() if count]
    nothing = not facts.episodes
    by_people = (
        Tip("label some: dovetail console RUN"),
        Tip("let labelers decide that are less sure", "labeling.min_confidence"),
    )
    by_machines = (
        Tip("see to the labeler's server"),
        Tip("ask about more episodes at once", "labeling.max_under_way"),
        Tip("label some yourself: dovetail console RUN"),
    )
    return Finding(
        severity=Severity.WARNING if nothing else Severity.HINT,
        message=(
            f"{num} episodes wait for labels: {', '.join(parts)}"
            + ("; none has any, so nothing is learned from practice" if nothing else "")
        ),
        tips=by_machines if most in ("away", "under way") else by_people,
    )


def rewards_disagree(facts: Facts) -> Answer:
    judged = [episode for episode in facts.lately(MANY) if episode.solved is not None]
    missed = sum(bool(episode.solved) and not episode.success for episode in judged)
    invented = sum(episode.success and not episode.solved for episode in judged)
    tips = (Tip("check who gives the rewards", "labels"), SEE_IT)
    if len(judged) >= FEW and missed + invented >= 0.2 * len(judged):
        return Finding(
            severity=Severity.WARNING,
            message=(
                f"{missed + invented} of the last {len(judged)} episodes are labelled otherwise than they ended: "
                f"{missed} that succeeded as failures, {invented} that did not as successes"
            ),
            tips=tips,
        )
    won = [episode.value for episode in judged if episode.solved and episode.value is not None]
    lost = [episode.value for episode in judged if not episode.solved and episode.value is not None]
    if min(len(won), len(lost)) >= 3 and _mean(won) <= _mean(lost):
        return Finding(
            severity=Severity.WARNING,
            message=(
                f"of the last {len(judged)} episodes those that succeeded were worth {_mean(won):.2f} on average and "
                f"the others {_mean(lost):.2f}: the rewards teach not to succeed"
            ),
            tips=(
                Tip("reward success more than what leads there", "labels"),
                Tip("reward success alone", "task.reward"),
                SEE_IT,
            ),
        )
    return None if len(judged) >= FEW else UNKNOWN


def q_above_returns(facts: Facts) -> Answer:
    """The critic's mean over its batches against the mean over the steps of the best episode: no policy that acts from
    anywhere in an episode can expect more than that, give or take a share of what is at stake."""
    q, best, lowest = facts.metrics.get("q"), facts.best_value, facts.lowest_value
    if q is None or best is None or lowest is None:
        return UNKNOWN
    at_stake = max(best - lowest, facts.largest_reward) or 1.0
    bounds = facts.settings.get("algorithm.target_range")
    low, high = bounds if isinstance(bounds, list) else (-math.inf, math.inf)
    at_bound = q > high - 0.02 * (high - low) and best < high - 0.1 * (high - low)
    if q <= best + 0.3 * at_stake and not at_bound:
        return None
    wide = Tip(
        "clip its targets to the returns that are possible, [0.0, 1.0] for a sparse reward",
        "algorithm.target_range",
    )
    entropy = Tip("do not count entropy as reward", "algorithm.backup_entropy")
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"the critic expects {q:.2f} on average, but the steps of even the best episode were worth {best:.2f}: it "
            "believes in what it has made up"
        ),
        tips=(
            *((entropy,) if facts.settings.get("algorithm.backup_entropy") else ()),
            *(() if at_bound else (wide,)),
            FEWER_UPDATES,
            SLOWER,
            Tip("trust the least of more critics", "algorithm.num_critics"),
        ),
    )


def entropy_collapsed(facts: Facts) -> Answer:
    """Far below its target; by the spread that it means, per number of an action, where there is none."""
    entropy, target, num = (*map(facts.metrics.get, ("entropy", "target_entropy")), facts.num_actions)
    if entropy is None or not num or len(facts.episodes) < FEW:
        return UNKNOWN
    if facts.success >= GOING_WELL:
        return None
    spread = math.exp(entropy / num - 0.5 * math.log(2 * math.pi * math.e))
    if target is None and spread >= 0.03:
        return None
    if target is not None and entropy >= target - max(num, abs(target)):
        return None
    seen = f"a spread of {100 * spread:.1f} % of the range" if target is None else f"{target:.1f} is aimed at"
    return Finding(
        severity=Severity.HINT,
        message=(
            f"the policy hardly tries anything new: its entropy is {entropy:.1f} ({seen}), and "
            f"{100 * facts.success:.0f} % of the last episodes succeeded"
        ),
        tips=(
            Tip("start with a higher temperature", "algorithm.temperature"),
            Tip("aim at a higher entropy", "algorithm.target_entropy"),
            Tip("pay more for entropy", "algorithm.entropy_coef"),
            SLOWER,
        ),
    )


def help_not_falling(facts: Facts) -> Answer:
    """Much help for long: some of it comes and goes in a healthy run."""
    early, latest = facts.early_human, facts.lately(MANY)
    if early is None or len(latest) < MANY or facts.num_episodes < 3 * MANY:
        return UNKNOWN
    now = _mean([episode.human_share for episode in latest])
    if now < 0.3 or now < 0.9 * early:
        return None
    well = facts.success >= GOING_WELL
    return Finding(
        severity=Severity.HINT,
        message=(
            f"people made {100 * now:.0f} % of the last {MANY} episodes' steps, and {100 * early:.0f} % of the first "
            f"{MANY}': the policy " + ("is not left alone to show what it can" if well else "is not taking over")
        ),
        tips=(
            Tip("help later, and let go sooner", "operator.patience_steps"),
            Tip("shorter corrections", "operator.max_steps"),
            Tip("fade help out sooner", "operator.fade_minutes"),
            Tip("learn more from each step", "learner.utd"),
        ),
    )


def one_source(facts: Facts) -> Answer:
    """Of learners with a critic: imitation is meant to see one hand only."""
    if "q" not in facts.metrics or len(facts.episodes) < FEW or not facts.sources:
        return UNKNOWN
    source, share = max(facts.sources.items(), key=lambda item: item[1])
    wants_prior = facts.settings.get("algorithm.prior_fraction")
    if share <= 0.9 or (source == "policy" and (not wants_prior or facts.success >= 0.5)):
        return None
    tips = {
        "demo": (
            Tip("draw less from demonstrations", "algorithm.prior_fraction"),
            Tip("practise longer", "run.env_steps"),
        ),
        "human": (
            Tip("let the policy act: help later", "operator.patience_steps"),
            Tip("watch fewer episodes", "operator.share"),
            Tip("shorter corrections", "operator.max_steps"),
        ),
        "policy": (MORE_DEMOS, MORE_HELP, Tip("draw more from them", "algorithm.prior_fraction")),
    }
    why = {
        "demo": "from demonstrations, and from what the policy itself does the critic learns nothing",
        "human": "people's, and from what the policy itself does the critic learns next to nothing",
        "policy": "the policy's own, and nobody shows it what would be better",
    }
    message = f"{100 * share:.0f} % of the steps that are learned from are {why[source]}"
    return Finding(severity=Severity.HINT, message=message, tips=tips[source])


def updates_starving(facts: Facts) -> Answer:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed < 100 or facts.owed <= facts.updates:
        return None
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"{facts.env_steps} online steps have earned {facts.updates + facts.owed} updates, and only "
            f"{facts.updates} are done: the learner has nothing to draw from, or cannot keep up"
        ),
        tips=(
            Tip("draw a share from demonstrations", "algorithm.demo_share"),
            MORE_DEMOS,
            MORE_HELP,
            FEWER_UPDATES,
            Tip("smaller batches", "algorithm.batch_size"),
        ),
    )


def updates_racing(facts: Facts) -> Answer:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed > -100 or -facts.owed <= 0.5 * facts.updates:
        return None
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"{facts.updates} updates were done where {facts.env_steps} online steps had earned "
            f"{facts.updates + facts.owed}: the learner goes over the same few steps again and again"
        ),
        tips=(
            Tip("more updates per step, if that is what you want", "learner.utd"),
            Tip("let the robot practise on: the learner waits until it has caught up"),
        ),
    )


def robot_waits(facts: Facts) -> Answer:
    """Where time is real: in simulation nobody minds."""
    if facts.act_s is None or facts.learn_s is None or facts.num_episodes < FEW:
        return UNKNOWN
    if facts.learn_s <= 3.0 * facts.act_s:
        return None
    share = facts.learn_s / (facts.learn_s + facts.act_s)
    return Finding(
        severity=Severity.HINT,
        message=f"the robot stands still {100 * share:.0f} % of the time and waits for the learner",
        tips=(
            FEWER_UPDATES,
            Tip("smaller batches", "algorithm.batch_size"),
            Tip("fewer critics", "algorithm.num_critics"),
        ),
    )


def stale_weights(facts: Facts) -> Answer:
    """By the versions since, or, where hardly any is published, by the updates: as many as ten episodes earn."""
    behind = [episode.versions_behind for episode in facts.lately(3) if episode.versions_behind is not None]
    unpublished, utd = facts.unpublished or 0, facts.settings.get("learner.utd")
    earned = utd * facts.env_steps / max(1, facts.num_episodes) if isinstance(utd, (int, float)) else 0.0
    tips: tuple[Tip, ...] = ()
    if facts.num_episodes >= FEW and unpublished >= max(100.0, 10 * earned):
        age, tips = f"{unpublished} updates", (Tip("publish weights more often", "learner.publish_every"),)
    elif len(behind) < 3:
        return UNKNOWN
    elif min(behind) < 10:
        return None
    else:
        age = f"{behind[-1]} versions"
        if facts.pinned is None:
            tips = (Tip("take newer weights up at every chunk", "actor.swap_weights"), FEWER_UPDATES)
    if facts.pinned is not None:
        tips = (Tip(f"unpin version {facts.pinned}: remove weights/pin.json from the run"), *tips)
    return Finding(
        severity=Severity.WARNING,
        message=f"the robot acts with weights that are {age} old: what is learned does not reach it",
        tips=tips,
    )


def out_of_range(facts: Facts) -> Answer:
    latest = facts.lately(5)
    shares: dict[str, list[float]] = {}
    for episode in latest:
        for key, share in episode.outside.items():
            shares.setdefault(key, []).append(share)
    found = {key: _mean(values) for key, values in shares.items() if len(values) == 5}
    if not found:
        return UNKNOWN
    if facts.success >= GOING_WELL:
        return None
    key, share = max(found.items(), key=lambda item: item[1])
    if share <= 0.25:
        return None
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"{100 * share:.0f} % of the values of '{key}' are cut off by the policy's normalisation: they lie far from all "
            "that it was fitted to, and to the policy they are the same"
        ),
        tips=(
            *((MORE_DEMOS,) if facts.settings.get("run.demos") == 0 else ()),  # there was nothing to fit it to
            Tip(f"see whether '{key}' has other units, or another setup, than when demonstrations were recorded"),
            Tip("record demonstrations that vary more", "run.demo_noise"),
            MORE_DEMOS,
            Tip(f"leave '{key}' out", "policy.inputs"),
        ),
    )


def saturated(facts: Facts) -> Answer:
    shares = [episode.saturated for episode in facts.lately(FEW) if episode.saturated is not None]
    if len(shares) < FEW:
        return UNKNOWN
    if _mean(shares) <= 0.8 or facts.success >= GOING_WELL:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"{100 * _mean(shares):.0f} % of what the policy asked for in the last {FEW} episodes lies at the limits of its "
            "actions: it knows full speed only"
        ),
        tips=(
            Tip("allow larger steps", "robot.max_step_m"),
            Tip("stay nearer to what people do", "algorithm.bc_weight"),
            Tip("start with a higher temperature", "algorithm.temperature"),
            Tip("pay more for entropy", "algorithm.entropy_coef"),
            SLOWER,
        ),
    )


def values_explain_nothing(facts: Facts) -> Answer:
    explained, num_rollouts = facts.metrics.get("explained_variance"), facts.updates or 0
    if explained is None or len(facts.episodes) < min(FEW, facts.num_episodes):  # they were an earlier process's
        return UNKNOWN
    if explained > 0.05 or num_rollouts < MANY or facts.success >= GOING_WELL:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"after {num_rollouts} rollouts the values explain {max(0.0, 100 * explained):.0f} % of how returns differ, so "
            "advantages are mostly chance"
        ),
        tips=(
            Tip("longer rollouts", "algorithm.rollout_steps"),
            Tip("weigh the values more", "algorithm.value_coef"),
            Tip("reward progress, not success alone", "task.reward"),
            SLOWER,
        ),
    )


def policy_jumps(facts: Facts) -> Answer:
    kl, cut = facts.metrics.get("kl"), facts.metrics.get("clip_fraction")
    if kl is None or cut is None:
        return UNKNOWN
    if kl <= 0.1 and cut <= 0.5:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"each update changes the policy too much: a KL divergence of {kl:.2f}, and {100 * cut:.0f} % of the samples "
            "beyond the clip"
        ),
        tips=(
            SLOWER,
            Tip("fewer epochs", "algorithm.num_epochs"),
            Tip("stop an update that has gone far enough", "algorithm.target_kl"),
        ),
    )


CHECKS: Mapping[str, Callable[[Facts], Answer]] = {
    check.__name__: check
    for check in (
        no_reward,
        labels_waiting,
        rewards_disagree,
        q_above_returns,
        entropy_collapsed,
        help_not_falling,
        one_source,
        updates_starving,
        updates_racing,
        robot_waits,
        stale_weights,
        out_of_range,
        saturated,
        values_explain_nothing,
        policy_jumps,
    )
}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
