"""`dovetail distill` and `dovetail deploy`: from what a run has learned to a better policy in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir, loading

if TYPE_CHECKING:
    from dovetail.api.deployment import Decision

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail distill first-try --into served-policy --name second")(distill)
    app.command(epilog="Example: dovetail deploy served-policy second --episodes 100")(deploy)


def distill(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run whose successful episodes become demonstrations.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the new run.")
    ] = None,
    into: Annotated[
        str, typer.Option("--into", help="The run whose policy is fine-tuned, or a recipe for a new policy.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the new run.")] = "",
    num_updates: Annotated[int, typer.Option("--updates", min=1, help="Updates of fine-tuning.")] = 3000,
    evaluate: Annotated[bool, typer.Option("--eval/--no-eval", help="Evaluate the new policy.")] = True,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Fine-tune a policy on the successful episodes of a run, in a new run.

    Episodes of a base policy, its residual and people count. Evaluations are left out.
    """
    if not into or not name:
        raise typer.BadParameter("give --into RUN2 (or a recipe) and --name NEW_RUN")
    with loading():
        from dovetail.api.distillation import distill as distill_run
    from dovetail.cli._session import STOPPED
    from dovetail.cli._stop import StopFlag
    from dovetail.cli._terminal import say
    from dovetail.core.errors import Interrupted

    with StopFlag() as stop:  # the evaluation moves the arm
        try:
            made = distill_run(
                run,
                into,
                tuple(overrides or ()),
                name=name,
                num_updates=num_updates,
                runs_dir=runs_dir,
                evaluate=evaluate,
                should_stop=stop,
            )
        except Interrupted:
            say(f"stopped; continue with: dovetail train --resume {name}")
            raise typer.Exit(STOPPED) from None
    after = made.run.report.success_after if evaluate else None
    rate = f", success {after.rate:.0%}" if after else ""
    say(f"{made.run.path}: fine-tuned on {made.num_episodes} successful episodes of {run}{rate}")


def deploy(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run whose deployed policy is shown or replaced.")],
    candidate: Annotated[
        str | None,
        typer.Argument(
            metavar="[CANDIDATE]", help="A run, RUN/weights/v00000009.json or a checkpoint.", show_default=False
        ),
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="Deploy it without a comparison. Default: the candidate of the gate.")
    ] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Drop the candidate that waits for a person.")] = False,
    roll_back: Annotated[bool, typer.Option("--roll-back", help="Return to the policy before.")] = False,
    watch: Annotated[
        int | None,
        typer.Option(
            "--watch",
            min=1,
            help="Run so many episodes of the deployed policy; it may be rolled back.",
            show_default=False,
        ),
    ] = None,
    num_episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=1, help="Most episodes of each policy in the comparison.")
    ] = 200,
    margin: Annotated[
        float | None, typer.Option("--margin", min=0.1, max=99.0, help="As in compare.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the resets.", show_default=False)
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Show the deployed policy of a run, or replace it by a candidate that is not worse.

    The gate is the test of compare: a candidate that is worse, or about which it cannot tell, is rejected (exit code 1).
    """
    with loading():
        from dovetail.api import deployment as api
    from dovetail.cli._judging_keys import JudgingKeys
    from dovetail.cli._session import STOPPED
    from dovetail.cli._stop import StopFlag
    from dovetail.cli._terminal import say

    state = api.deployment_of(run, runs_dir=runs_dir)
    if roll_back or reject or approve:
        if roll_back:
            done = api.roll_back(run, runs_dir=runs_dir)
        elif reject:
            done = api.reject(run, runs_dir=runs_dir)
        else:
            done = api.approve(run, candidate, runs_dir=runs_dir)
        if not done:
            say("the run is active: it does this between two episodes")
        state = api.deployment_of(run, runs_dir=runs_dir)
    elif watch is not None:
        before = state.deployed.weights
        with StopFlag() as stop, JudgingKeys() as keys:
            state, count = api.watch(
                run,
                num_episodes=watch,
                seed=seed,
                runs_dir=runs_dir,
                should_stop=stop,
                announce=say,
                on_link=keys,
            )
        if state.deployed.weights != before:
            say(f"rolled back after {count} episodes without help")
            say(f"deployed: {state.deployed.weights}")
            raise typer.Exit(1)
        if count < watch:
            say(f"stopped after {count} of {watch} episodes")
            raise typer.Exit(STOPPED)
    elif candidate is not None:
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
        if not decision.deployed:
            raise typer.Exit(1)
        state = api.deployment_of(run, runs_dir=runs_dir)
    say(f"deployed: {state.deployed.weights}")
    if state.candidate is not None:
        say(f"candidate: {state.candidate}")
    for one in reversed(state.earlier):
        say(f"  before: {one.weights}")


def _decision_line(decision: Decision, candidate: str) -> str:
    a, b, test = decision.comparison.a, decision.comparison.b, decision.comparison.test
    rates = f" ({a.success.rate:.0%} deployed, {b.success.rate:.0%} candidate)" if a.success and b.success else ""
    answer = "deployed" if decision.deployed else "rejected"
    return f"{answer}: {candidate} is '{test.answer}' after {test.num_pairs} episodes each{rates}"
