"""Changes that the coach proposes. Each function returns None if the change is not possible in this run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.learn._coach_facts import Change, Facts

__all__ = [
    "LOOK",
    "change",
    "closer_to_people",
    "cooler",
    "dense_labels",
    "dense_reward",
    "factor",
    "fewer_updates",
    "inputs_with",
    "less_help",
    "longer_episodes",
    "more_demos",
    "more_entropy",
    "more_help",
    "more_steps",
]

LOOK = Change(command="dovetail episodes show {run} last")
_NUM_DEMOS = 20


def change(facts: Facts, settings: Mapping[str, object]) -> Change | None:
    """New values of settings that this run has. None if it lacks one of them, or if they are its values already."""
    new = dict(settings)
    if not all(key in facts.settings for key in new) or all(facts.settings[key] == new[key] for key in new):
        return None
    return Change(settings={key: value for key, value in new.items() if facts.settings[key] != value})


def factor(
    facts: Facts, key: str, by: float, *, at_least: float | None = None, at_most: float | None = None
) -> Change | None:
    """A number times `by`, within bounds. A whole number stays whole."""
    now = facts.number(key)
    if now is None:
        return None
    new = now * by
    new = new if at_least is None else max(new, at_least)
    new = new if at_most is None else min(new, at_most)
    if (new > now) != (by > 1.0):  # a bound is in the way
        return None
    whole = isinstance(facts.settings[key], int)
    return change(facts, {key: max(1, round(new)) if whole else float(f"{new:.3g}")})


# ---- data


def more_demos(facts: Facts) -> Change | None:
    """Only if the task has an expert, or a person demonstrates. PPO learns from demonstrations only by cloning."""
    clones_only = facts.settings.get("algorithm.type") == "ppo"
    if not facts.offers.demos or (clones_only and not facts.number("learner.bc_updates")):
        return None
    now = int(facts.number("run.demos") or 0)
    return change(facts, {"run.demos": max(_NUM_DEMOS, 2 * now)})


def more_help(facts: Facts) -> Change | None:
    """Supervise every episode, or have the task's expert do it where no operator is configured."""
    if facts.settings.get("algorithm.type") == "ppo":  # no person takes over in its parallel worlds
        return None
    if facts.settings.get("operator.type") == "none" and facts.offers.expert:
        return Change(settings={"operator": {"type": "scripted", "watched_share": 1.0}})
    if (share := facts.number("operator.watched_share")) is not None and share < 1.0:
        return change(facts, {"operator.watched_share": 1.0})
    return None


def less_help(facts: Facts) -> Change | None:
    """So few watched episodes that people take less than a third of the steps."""
    share = facts.number("operator.watched_share")
    return (
        None if share is None else change(facts, {"operator.watched_share": float(f"{min(0.2, share / 2):.3g}")})
    )


def longer_episodes(facts: Facts) -> Change | None:
    keys = ("task.time_limit_s", "task.max_steps", "robot.max_steps")
    return next((one for key in keys if (one := factor(facts, key, 2.0)) is not None), None)


def more_steps(facts: Facts) -> Change | None:
    return factor(facts, "run.env_steps", 2.0, at_least=1000)


# ---- rewards


def dense_labels(facts: Facts) -> Change | None:
    """Labels that contain the task's own rewards. A range of targets for a sparse reward would clip them."""
    labels = facts.settings.get("labels")
    if not isinstance(labels, Sequence) or any(isinstance(one, Mapping) and one.get("dense") for one in labels):
        return None
    new: dict[str, object] = {"labels": [{"type": "outcome", "dense": True}]}
    if facts.settings.get("algorithm.target_range") is not None:
        new["algorithm.target_range"] = None
    return Change(settings=new)


def dense_reward(facts: Facts) -> Change | None:
    """A reward for progress, in the task and, for learners that read labels, in the labels."""
    task = change(facts, {"task.reward": "dense"})
    if task is None or facts.settings.get("algorithm.type") == "ppo":
        return task
    labels = dense_labels(facts)
    return Change(settings={**task.settings, **(labels.settings if labels else {})})


# ---- policy and learner


def inputs_with(facts: Facts, key: str) -> Change | None:
    return change(facts, {"policy.inputs": [*facts.offers.inputs, key]}) if facts.offers.inputs else None


def fewer_updates(facts: Facts) -> Change | None:
    return factor(facts, "learner.utd", 0.5, at_least=0.05)


def cooler(facts: Facts) -> Change | None:
    return factor(facts, "algorithm.lr", 1 / 3, at_least=1e-5)


def closer_to_people(facts: Facts) -> Change | None:
    """Imitate demonstrations and corrections too, where there are some."""
    if not facts.demos.num and not any(episode.human_share for episode in facts.episodes):
        return None
    if facts.number("algorithm.bc_weight") == 0.0:
        return change(facts, {"algorithm.bc_weight": 1.0})
    return factor(facts, "algorithm.bc_weight", 10.0, at_most=1000.0)


def more_entropy(facts: Facts) -> Change | None:
    """More exploration. An explicit target of the entropy goes first, because it overrides the temperature."""
    if facts.settings.get("algorithm.target_entropy") is not None:
        return change(facts, {"algorithm.target_entropy": None})
    if facts.number("algorithm.entropy_coef") == 0.0:
        return change(facts, {"algorithm.entropy_coef": 0.01})
    coefficient = factor(facts, "algorithm.entropy_coef", 10.0, at_most=0.1)
    return coefficient or factor(facts, "algorithm.temperature", 10.0, at_most=1.0)
