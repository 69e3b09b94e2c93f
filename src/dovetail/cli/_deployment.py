"""`dovetail deploy`: show or change what is deployed. Each function returns the exit code."""

from __future__ import annotations

from pathlib import Path

from dovetail.api import deployment as api
from dovetail.cli._judging_keys import JudgingKeys
from dovetail.cli._session import STOPPED
from dovetail.cli._stop import StopFlag
from dovetail.cli._terminal import say

__all__ = ["approve", "deploy", "reject", "roll_back", "show", "watch"]


def show(run: str, *, runs_dir: Path) -> int:
    state = api.deployment_of(run, runs_dir=runs_dir)
    say(f"deployed: {state.deployed.weights}")
    if state.candidate is not None:
        say(f"candidate: {state.candidate}")
    for one in reversed(state.earlier):
        say(f"  before: {one.weights}")
    return 0


def approve(run: str, candidate: str | None, *, runs_dir: Path) -> int:
    return _changed(run, runs_dir, done=api.approve(run, candidate, runs_dir=runs_dir))


def reject(run: str, *, runs_dir: Path) -> int:
    return _changed(run, runs_dir, done=api.reject(run, runs_dir=runs_dir))


def roll_back(run: str, *, runs_dir: Path) -> int:
    return _changed(run, runs_dir, done=api.roll_back(run, runs_dir=runs_dir))


def _changed(run: str, runs_dir: Path, *, done: bool) -> int:
    if not done:
        say("the run is active: it does this between two episodes")
    return show(run, runs_dir=runs_dir)


def watch(run: str, *, num_episodes: int, seed: int | None, runs_dir: Path) -> int:
    """Run episodes of the deployed policy, which may be rolled back."""
    before = api.deployment_of(run, runs_dir=runs_dir).deployed.weights
    with StopFlag() as stop, JudgingKeys() as keys:
        state, count = api.watch(
            run,
            num_episodes=num_episodes,
            seed=seed,
            runs_dir=runs_dir,
            should_stop=stop,
            announce=say,
            on_link=keys,
        )
    if state.deployed.weights != before:
        say(f"rolled back after {count} episodes without help")
        say(f"deployed: {state.deployed.weights}")
        return 1
    if count < num_episodes:
        say(f"stopped after {count} of {num_episodes} episodes")
        return STOPPED
    return show(run, runs_dir=runs_dir)


def deploy(
    run: str, candidate: str, *, num_episodes: int, margin: float | None, seed: int | None, runs_dir: Path
) -> int:
    """Compare the candidate with the deployed policy, and deploy it if it is not worse."""
    with StopFlag() as stop, JudgingKeys() as keys:
        decision = api.deploy(
            run,
            candidate,
            num_episodes=num_episodes,
            margin=margin,
            seed=seed,
            runs_dir=runs_dir,
            should_stop=stop,
            announce=say,
            on_link=keys,
        )
    say(_decision_line(decision, candidate))
    return show(run, runs_dir=runs_dir) if decision.deployed else 1


def _decision_line(decision: api.Decision, candidate: str) -> str:
    a, b, test = decision.comparison.a, decision.comparison.b, decision.comparison.test
    rates = f" ({a.success.rate:.0%} deployed, {b.success.rate:.0%} candidate)" if a.success and b.success else ""
    answer = "deployed" if decision.deployed else "rejected"
    return f"{answer}: {candidate} is '{test.answer}' after {test.num_pairs} episodes each{rates}"
