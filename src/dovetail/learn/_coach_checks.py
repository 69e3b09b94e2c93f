"""The checks of the coach. Each function's name is the check's name in events and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dovetail.learn._coach_facts import UNKNOWN, Facts, Finding, Result, Severity, Tip

__all__ = ["CHECKS"]

FEW, MANY = 10, 20  # episodes: enough to suspect a problem, enough to compare
GOING_WELL = 0.9  # success rate above which some oddities are ignored

SEE_IT = Tip("watch one: dovetail episodes show RUN last")
MORE_DEMOS = Tip("record more demonstrations", "run.demos")
MORE_HELP = Tip("take over more often", "operator.watched_share")
FEWER_UPDATES = Tip("do fewer updates per step", "learner.utd")
LOWER_LR = Tip("lower the learning rate", "algorithm.lr")
MORE_ENTROPY = Tip("increase the weight of the entropy", "algorithm.entropy_coef")
HIGHER_TEMPERATURE = Tip("start with a higher temperature", "algorithm.temperature")
REWARD_PROGRESS = Tip("reward progress, not only success", "task.reward")


def no_reward(facts: Facts) -> Result:
    latest = facts.latest(2 * MANY)
    if any(episode.rewarded for episode in latest):
        return None
    if len(latest) < FEW:
        return UNKNOWN
    num = len(latest)
    which = f"the {num} online episodes so far" if num == facts.num_episodes else f"the last {num} online episodes"
    return Finding(
        severity=Severity.WARNING,
        message=f"none of {which} has earned a reward, so learning has no signal",
        tips=(
            MORE_HELP,
            MORE_DEMOS,
            Tip("give each episode more time", "task.time_limit_s"),
            Tip("give each episode more time", "robot.max_steps"),
            REWARD_PROGRESS,
            SEE_IT,
        ),
    )


_WAIT_REASONS = {
    "away": "a labeler that does not answer",
    "under way": "a labeler that is slower than the robot",
    "uncertain": "a person, because no labeler is certain",
    "disagreement": "a person, because labelers disagree",
    "new": "a person, who labels every episode",
}


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
    by_people = (
        Tip("label some: dovetail console RUN"),
        Tip("accept less certain labelers", "labeling.min_confidence"),
    )
    by_machines = (
        Tip("check the labeler's server"),
        Tip("label more episodes at the same time", "labeling.max_labeling_episodes"),
        Tip("label some yourself: dovetail console RUN"),
    )
    return Finding(
        severity=Severity.WARNING if none_labeled else Severity.HINT,
        message=(
            f"{num} episodes wait for labels: {', '.join(reasons)}"
            + ("; no online episode has labels, so none is learned from" if none_labeled else "")
        ),
        tips=by_machines if most in ("away", "under way") else by_people,
    )


def rewards_disagree(facts: Facts) -> Result:
    judged = [episode for episode in facts.latest(MANY) if episode.solved is not None]
    missed = sum(bool(episode.solved) and not episode.success for episode in judged)
    invented = sum(episode.success and not episode.solved for episode in judged)
    if len(judged) >= FEW and missed + invented >= 0.2 * len(judged):
        return Finding(
            severity=Severity.WARNING,
            message=(
                f"the labels of {missed + invented} of the last {len(judged)} episodes contradict their outcome: "
                f"{missed} successes labeled as failures, {invented} failures labeled as successes"
            ),
            tips=(Tip("check the labelers", "labels"), SEE_IT),
        )
    won = [episode.value for episode in judged if episode.solved and episode.value is not None]
    lost = [episode.value for episode in judged if not episode.solved and episode.value is not None]
    if min(len(won), len(lost)) >= 3 and _mean(won) <= _mean(lost):
        return Finding(
            severity=Severity.WARNING,
            message=(
                f"of the last {len(judged)} episodes, successes had a mean return of {_mean(won):.2f} and failures "
                f"{_mean(lost):.2f}: the rewards teach the policy not to succeed"
            ),
            tips=(
                Tip("reward success more than progress", "labels"),
                Tip("reward success only", "task.reward"),
                SEE_IT,
            ),
        )
    return None if len(judged) >= FEW else UNKNOWN


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
    if q <= best + 0.3 * value_range and not at_bound:
        return None
    clip = Tip(
        "clip its targets to the possible returns, [0.0, 1.0] for a sparse reward",
        "algorithm.target_range",
    )
    entropy = Tip("do not count entropy as reward", "algorithm.backup_entropy")
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"the critic expects a return of {q:.2f} on average, but the best episode had {best:.2f}: it overestimates "
            "values"
        ),
        tips=(
            *((entropy,) if facts.settings.get("algorithm.backup_entropy") else ()),
            *(() if at_bound else (clip,)),
            FEWER_UPDATES,
            LOWER_LR,
            Tip("take the minimum of more critics", "algorithm.num_critics"),
        ),
    )


def entropy_collapsed(facts: Facts) -> Result:
    """The entropy is far below its target or, without a target, the standard deviation per action value is tiny."""
    entropy, target, num = (*map(facts.metrics.get, ("entropy", "target_entropy")), facts.num_actions)
    if entropy is None or not num or len(facts.episodes) < FEW:
        return UNKNOWN
    if facts.success >= GOING_WELL:
        return None
    std = math.exp(entropy / num - 0.5 * math.log(2 * math.pi * math.e))
    if target is None and std >= 0.03:
        return None
    if target is not None and entropy >= target - max(num, abs(target)):
        return None
    detail = f"a std of {100 * std:.1f} % of the range" if target is None else f"the target is {target:.1f}"
    return Finding(
        severity=Severity.HINT,
        message=(
            f"the policy hardly explores: its entropy is {entropy:.1f} ({detail}), and "
            f"{100 * facts.success:.0f} % of the last episodes succeeded"
        ),
        tips=(
            HIGHER_TEMPERATURE,
            Tip("set a higher target entropy", "algorithm.target_entropy"),
            MORE_ENTROPY,
            LOWER_LR,
        ),
    )


def help_not_falling(facts: Facts) -> Result:
    """Much help for a long time. Less than that comes and goes in a healthy run."""
    early, latest = facts.early_human, facts.latest(MANY)
    if early is None or len(latest) < MANY or facts.num_episodes < 3 * MANY:
        return UNKNOWN
    now = _mean([episode.human_share for episode in latest])
    if now < 0.3 or now < 0.9 * early:
        return None
    well = facts.success >= GOING_WELL
    return Finding(
        severity=Severity.HINT,
        message=(
            f"people took {100 * now:.0f} % of the steps in the last {MANY} episodes and {100 * early:.0f} % in the first "
            f"{MANY}: the policy " + ("gets no chance to act alone" if well else "does not learn to act alone")
        ),
        tips=(
            Tip("take over later and hand back sooner", "operator.stuck_after_steps"),
            Tip("make corrections shorter", "operator.max_takeover_steps"),
            Tip("end the help sooner", "operator.fade_out_minutes"),
            Tip("do more updates per step", "learner.utd"),
        ),
    )


def one_source(facts: Facts) -> Result:
    """For learners with a critic: imitation is meant to have one source."""
    if "q" not in facts.metrics or len(facts.episodes) < FEW or not facts.sources:
        return UNKNOWN
    source, share = max(facts.sources.items(), key=lambda item: item[1])
    uses_prior = facts.settings.get("algorithm.prior_fraction")
    if share <= 0.9 or (source == "policy" and (not uses_prior or facts.success >= 0.5)):
        return None
    tips = {
        "demo": (
            Tip("draw less from demonstrations", "algorithm.prior_fraction"),
            Tip("learn online for longer", "run.env_steps"),
        ),
        "human": (
            Tip("let the policy act: take over later", "operator.stuck_after_steps"),
            Tip("supervise fewer episodes", "operator.watched_share"),
            Tip("make corrections shorter", "operator.max_takeover_steps"),
        ),
        "policy": (MORE_DEMOS, MORE_HELP, Tip("draw more from them", "algorithm.prior_fraction")),
    }
    consequences = {
        "demo": "from demonstrations: the critic learns nothing about what the policy does",
        "human": "a person's: the critic learns almost nothing about what the policy does",
        "policy": "the policy's own: nothing shows it a better way",
    }
    message = f"{100 * share:.0f} % of the steps in a batch are {consequences[source]}"
    return Finding(severity=Severity.HINT, message=message, tips=tips[source])


def updates_starving(facts: Facts) -> Result:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed < 100 or facts.owed <= facts.updates:
        return None
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"{facts.env_steps} online steps have earned {facts.updates + facts.owed} updates, but only "
            f"{facts.updates} are done: the learner has no data to draw from, or is too slow"
        ),
        tips=(
            Tip("draw a share from demonstrations", "algorithm.demo_share"),
            MORE_DEMOS,
            MORE_HELP,
            FEWER_UPDATES,
            Tip("use smaller batches", "algorithm.batch_size"),
        ),
    )


def updates_racing(facts: Facts) -> Result:
    if facts.updates is None:
        return UNKNOWN
    if facts.owed > -100 or -facts.owed <= 0.5 * facts.updates:
        return None
    return Finding(
        severity=Severity.WARNING,
        message=(
            f"{facts.updates} updates are done, but {facts.env_steps} online steps have earned only "
            f"{facts.updates + facts.owed}: the learner repeats the same few steps"
        ),
        tips=(
            Tip("do more updates per step, if you want that", "learner.utd"),
            Tip("continue the run: the learner waits until the robot has caught up"),
        ),
    )


def robot_waits(facts: Facts) -> Result:
    """In real time only: a simulated robot may wait."""
    if facts.act_s is None or facts.learn_s is None or facts.num_episodes < FEW:
        return UNKNOWN
    if facts.learn_s <= 3.0 * facts.act_s:
        return None
    share = facts.learn_s / (facts.learn_s + facts.act_s)
    return Finding(
        severity=Severity.HINT,
        message=f"the robot waits for the learner {100 * share:.0f} % of the time",
        tips=(
            FEWER_UPDATES,
            Tip("use smaller batches", "algorithm.batch_size"),
            Tip("use fewer critics", "algorithm.num_critics"),
        ),
    )


def stale_weights(facts: Facts) -> Result:
    """By versions or, if weights are hardly published, by updates: as many as ten episodes earn."""
    behind = [episode.versions_behind for episode in facts.latest(3) if episode.versions_behind is not None]
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
            tips = (Tip("load new weights at every chunk", "actor.swap_weights"), FEWER_UPDATES)
    if facts.pinned is not None:
        tips = (Tip(f"unpin version {facts.pinned}: remove weights/pin.json from the run"), *tips)
    return Finding(
        severity=Severity.WARNING,
        message=f"the robot acts with weights that are {age} old: it does not benefit from learning",
        tips=tips,
    )


def out_of_range(facts: Facts) -> Result:
    latest = facts.latest(5)
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
            f"normalization clips {100 * share:.0f} % of the values of '{key}': they are far outside the range that it was "
            "fitted to, and the policy cannot tell them apart"
        ),
        tips=(
            *(
                (MORE_DEMOS,) if facts.settings.get("run.demos") == 0 else ()
            ),  # normalization was fitted to nothing
            Tip(f"check whether '{key}' has other units, or another setup, than in the demonstrations"),
            Tip("record demonstrations with more variation", "run.demo_noise"),
            MORE_DEMOS,
            Tip(f"leave '{key}' out", "policy.inputs"),
        ),
    )


def saturated(facts: Facts) -> Result:
    shares = [episode.saturated for episode in facts.latest(FEW) if episode.saturated is not None]
    if len(shares) < FEW:
        return UNKNOWN
    if _mean(shares) <= 0.8 or facts.success >= GOING_WELL:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"{100 * _mean(shares):.0f} % of the policy's action values in the last {FEW} episodes are at a limit: it acts "
            "at full speed only"
        ),
        tips=(
            Tip("allow larger steps", "robot.max_step_m"),
            Tip("stay closer to what people do", "algorithm.bc_weight"),
            HIGHER_TEMPERATURE,
            MORE_ENTROPY,
            LOWER_LR,
        ),
    )


def values_explain_nothing(facts: Facts) -> Result:
    explained, num_rollouts = facts.metrics.get("explained_variance"), facts.updates or 0
    if explained is None or len(facts.episodes) < min(FEW, facts.num_episodes):  # after a resume
        return UNKNOWN
    if explained > 0.05 or num_rollouts < MANY or facts.success >= GOING_WELL:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"after {num_rollouts} rollouts, the value network explains {max(0.0, 100 * explained):.0f} % of the variance "
            "of returns, so advantages are mostly noise"
        ),
        tips=(
            Tip("collect longer rollouts", "algorithm.rollout_steps"),
            Tip("increase the weight of the value loss", "algorithm.value_coef"),
            REWARD_PROGRESS,
            LOWER_LR,
        ),
    )


def policy_jumps(facts: Facts) -> Result:
    kl, clipped = facts.metrics.get("kl"), facts.metrics.get("clip_fraction")
    if kl is None or clipped is None:
        return UNKNOWN
    if kl <= 0.1 and clipped <= 0.5:
        return None
    return Finding(
        severity=Severity.HINT,
        message=(
            f"each update changes the policy too much: the KL divergence is {kl:.2f}, and {100 * clipped:.0f} % of the "
            "steps are clipped"
        ),
        tips=(
            LOWER_LR,
            Tip("use fewer epochs", "algorithm.num_epochs"),
            Tip("end an update at a KL divergence", "algorithm.target_kl"),
        ),
    )


CHECKS: Mapping[str, Callable[[Facts], Result]] = {
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
