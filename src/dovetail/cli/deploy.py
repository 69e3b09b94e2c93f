"""`dovetail distill` and `dovetail deploy`: from what a run has learned to a better policy in use."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir, loading

__all__ = ["register"]

DeployedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="The run whose deployed policy is shown or replaced.")
]
Candidate = Annotated[
    str | None,
    typer.Argument(
        metavar="[CANDIDATE]", help="A run, RUN/weights/v00000009.json or a checkpoint.", show_default=False
    ),
]
Approve = Annotated[
    bool, typer.Option("--approve", help="Deploy it without a comparison. Default: the candidate of the gate.")
]
Reject = Annotated[bool, typer.Option("--reject", help="Drop the candidate that waits for a person.")]
RollBack = Annotated[bool, typer.Option("--roll-back", help="Return to the policy before.")]
Watch = Annotated[
    int | None,
    typer.Option(
        "--watch",
        min=1,
        help="Run so many episodes of the deployed policy; it may be rolled back.",
        show_default=False,
    ),
]
Episodes = Annotated[
    int, typer.Option("--episodes", "-n", min=1, help="Most episodes of each policy in the comparison.")
]
Margin = Annotated[
    float | None, typer.Option("--margin", min=0.1, max=99.0, help="As in compare.", show_default=False)
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the resets.", show_default=False)]


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
    run: DeployedRun,
    candidate: Candidate = None,
    approve: Approve = False,
    reject: Reject = False,
    roll_back: RollBack = False,
    watch: Watch = None,
    num_episodes: Episodes = 200,
    margin: Margin = None,
    seed: Seed = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Show the deployed policy of a run, or replace it by a candidate that is not worse.

    The gate is the test of compare: a candidate that is worse, or about which it cannot tell, is rejected (exit code 1).
    """
    with loading():
        from dovetail.cli import _deployment as deployment

    if roll_back:
        code = deployment.roll_back(run, runs_dir=runs_dir)
    elif reject:
        code = deployment.reject(run, runs_dir=runs_dir)
    elif approve:
        code = deployment.approve(run, candidate, runs_dir=runs_dir)
    elif watch is not None:
        code = deployment.watch(run, num_episodes=watch, seed=seed, runs_dir=runs_dir)
    elif candidate is not None:
        code = deployment.deploy(
            run, candidate, num_episodes=num_episodes, margin=margin, seed=seed, runs_dir=runs_dir
        )
    else:
        code = deployment.show(run, runs_dir=runs_dir)
    raise typer.Exit(code)
