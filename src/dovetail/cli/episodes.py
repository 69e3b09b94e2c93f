"""`dovetail episodes`: what was recorded in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["register"]

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path.")]
EpisodeId = Annotated[
    str, typer.Argument(metavar="ID", help="An episode's id, the start of one, a number from `ls`, first or last.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="List, look at and film recorded episodes.", epilog="Example: dovetail episodes ls first-try"
    )
    group.command("ls", epilog="Example: dovetail episodes ls first-try --purpose online --outcome failure")(ls)
    group.command("show", epilog="Example: dovetail episodes show first-try last")(show)
    group.command("video", epilog="Example: dovetail episodes video first-try last --out last.mp4")(video)
    app.add_typer(group, name="episodes", no_args_is_help=True)


def ls(
    run: Run,
    purpose: Annotated[str | None, typer.Option("--purpose", help="Only demo, online or eval.")] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="Only success, failure, timeout or aborted.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """List the episodes of a run, oldest first."""
    from dovetail.cli import _episodes

    _episodes.ls(run, purpose=purpose, outcome=outcome, runs_dir=runs_dir)


def show(run: Run, episode: EpisodeId, runs_dir: RunsDir = RUNS_DIR) -> None:
    """One episode: what it was, its columns, and how rewards and metrics went."""
    from dovetail.cli import _episodes

    _episodes.show(run, episode, runs_dir=runs_dir)


def video(
    run: Run,
    episode: EpisodeId,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: RUN/videos/ID-CAMERA.mp4.")] = None,
    camera: Annotated[str, typer.Option("--camera", help="Which camera.")] = "front",
    size: Annotated[int, typer.Option("--size", min=16, max=4096, help="Pixels, where it is filmed anew.")] = 480,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Make an mp4 of one episode, from its recorded images or filmed anew in simulation."""
    from dovetail.cli import _episodes

    _episodes.video(run, episode, out=out, camera=camera, size=size, runs_dir=runs_dir)
