"""`dovetail compare`: is one policy worse than another?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, Quiet, RunsDir, loading

__all__ = ["register"]

_WHAT = "A run, RUN/checkpoints/best, RUN/checkpoints/last or RUN/weights/v00000009.json."


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail compare first-try second-try --episodes 100")(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The policy in use. {_WHAT}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The policy that may replace it. As A.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override settings of both runs: task.time_limit_s=8."),
    ] = None,
    num_episodes: Annotated[
        int,
        typer.Option("--episodes", "-n", min=1, help="Most episodes of each policy; usually fewer are played."),
    ] = 200,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=0.1,
            max=99.0,
            help="B may be worse by this much: points of success (default 5), or, in an environment without success, "
            "percent of the spread of returns (default 25).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, help="Seed of the resets. Default: run.seed of A plus 1000.", show_default=False
        ),
    ] = None,
    robot: Annotated[
        str | None, typer.Option("--robot", help="The arm to use, for runs with several arms.", show_default=False)
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the result to this file.", show_default=False)
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    quiet: Quiet = False,
) -> None:
    """Test whether policy B is worse than policy A, with as few episodes as possible.

    Answers "not worse by more than 5 points", "worse" or "cannot tell". Each of the first two answers is wrong in at most
    5 % of comparisons. A simulated robot plays both policies on the same resets, a real robot in random order. See
    docs/compare.md.
    """
    with loading():
        from dovetail.cli import _compare

    raise typer.Exit(
        _compare.show_comparison(
            a,
            b,
            overrides=tuple(overrides or ()),
            num_episodes=num_episodes,
            margin=margin,
            seed=seed,
            robot=robot,
            runs_dir=runs_dir,
            json_file=json_file,
            quiet=quiet,
        )
    )
