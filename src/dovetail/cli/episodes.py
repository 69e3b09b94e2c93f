"""`dovetail episodes`: list, show, check, remove, export and import recorded episodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli._rename import IgnoreNames, Rename
from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["Filters", "Run", "filtered", "register"]

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path.")]
_ID_HELP = "Id of an episode or the start of one, a number of `ls`, first or last."
EpisodeId = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP)]

Filters = dict[str, Any]


class Format(StrEnum):
    LEROBOT = "lerobot"


class VideoCodec(StrEnum):
    AV1 = "av1"
    H264 = "h264"


def _option(name: str, help_text: str, **other: Any) -> Any:
    return typer.Option(f"--{name}", help=help_text, rich_help_panel="Which episodes", show_default=False, **other)


_FILTERS: dict[str, Any] = {
    "task": Annotated[str | None, _option("task", "Task.")],
    "purpose": Annotated[str | None, _option("purpose", "Purpose: demo, online or eval.")],
    "outcome": Annotated[str | None, _option("outcome", "Outcome: success, failure, timeout or aborted.")],
    "source": Annotated[
        str | None,
        _option("source", "human: a person moved the arm in at least one step; policy: the policy alone."),
    ],
    "label": Annotated[str | None, _option("label", "Current label: success, failure or none.")],
    "labeler": Annotated[str | None, _option("labeler", "Labeler of the current label.")],
    "robot": Annotated[str | None, _option("robot", "Name of the robot.")],
    "since": Annotated[
        str | None,
        _option("since", "Started at this time or later: 2026-01-31, 2026-01-31T09:30, or 90min, 2h, 3d, 1w ago."),
    ],
    "until": Annotated[str | None, _option("until", "Started before this time. A date includes that day.")],
    "limit": Annotated[int | None, _option("limit", "Only the newest N.", min=1)],
}


def filtered(command: Callable[..., None], *, without: Sequence[str] = ()) -> Callable[..., None]:
    """Add the filter options to a command, except those in `without`. The command receives them as `filters`."""
    options = {name: kind for name, kind in _FILTERS.items() if name not in without}

    def choosing(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in options}
        command(**values, filters=chosen)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [parameter for parameter in own if parameter.name != "filters"]
    for name, kind in options.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    choosing.__name__, choosing.__doc__ = command.__name__, command.__doc__
    choosing.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    choosing.__dict__["__signature__"] = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return choosing


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="List, show, check, remove, export and import recorded episodes.",
        epilog="Example: dovetail episodes ls first-try",
    )
    group.command("ls", epilog="Example: dovetail episodes ls first-try --outcome failure --since 2h")(ls)
    group.command("show", epilog="Example: dovetail episodes show first-try last --save last.rrd")(show)
    group.command("video", epilog="Example: dovetail episodes video first-try --merge --purpose online")(video)
    group.command("verify", epilog="Example: dovetail episodes verify first-try --repair")(verify)
    group.command("rm", epilog="Example: dovetail episodes rm first-try --outcome aborted")(rm)
    group.command(
        "export", epilog="Example: dovetail episodes export first-try --out datasets/peg --label success"
    )(export)
    group.command(
        "import", epilog="Example: dovetail episodes import second-try datasets/peg --recipe peg-insertion"
    )(import_)
    app.add_typer(group, name="episodes", no_args_is_help=True)


@filtered
def ls(
    *,
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """List the episodes of a run, oldest first."""
    from dovetail.cli.episode_views import listing

    listing.ls(run, filters, as_json=as_json, runs_dir=runs_dir)


def show(
    run: Run,
    episode: EpisodeId,
    rerun: Annotated[bool, typer.Option("--rerun", help="Open it in Rerun's viewer.")] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE.rrd", help="Write a Rerun file, without opening a viewer."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Show one episode: its facts, its labels, and a summary of each column."""
    from dovetail.cli.episode_views import listing

    listing.show(run, episode, rerun=rerun, save=save, runs_dir=runs_dir)


@filtered
def video(
    *,
    run: Run,
    episode: Annotated[
        str | None, typer.Argument(metavar="ID", help=_ID_HELP + " None with --merge.", show_default=False)
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Make a time-lapse of all episodes that match.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write. Default: RUN/videos/ID-CAMERA.mp4, or time-lapse-CAMERA.mp4."
        ),
    ] = None,
    camera: Annotated[
        str | None, typer.Option("--camera", help="Camera. Default: that of the run's video.", show_default=False)
    ] = None,
    size: Annotated[
        int, typer.Option("--size", min=16, max=4096, help="Width and height in pixels, for a rendered video.")
    ] = 480,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", min=0.01, max=1000.0, help="Speed relative to real time. Default: 1, or 8 with --merge."
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Make an mp4 of one episode, or a time-lapse of many.

    It uses the recorded images, or renders the episode again in simulation.
    """
    from dovetail.cli.episode_views import video as views

    if merge:
        views.merge(
            run, filters, episode=episode, out=out, camera=camera, size=size, speed=speed, runs_dir=runs_dir
        )
    else:
        views.one(run, episode, filters, out=out, camera=camera, size=size, speed=speed, runs_dir=runs_dir)


def verify(
    run: Run,
    repair: Annotated[bool, typer.Option("--repair", help="Repair recoverable files.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Check every file of a run that has a checksum, and report damage and what can be repaired.

    Exit code 1 if something is damaged and was not repaired.
    """
    from dovetail.cli.episode_views import verify as view

    raise typer.Exit(view.verify(run, repair=repair, runs_dir=runs_dir))


@filtered
def rm(
    *,
    run: Run,
    episodes: Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID_HELP, show_default=False)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Delete episodes permanently: those named, or all that match. Their labels are kept."""
    from dovetail.cli.episode_views import remove

    remove.rm(run, episodes or [], filters, yes=yes, runs_dir=runs_dir)


@filtered
def export(
    *,
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the dataset. An existing dataset receives the new episodes. Default: RUN/lerobot.",
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Format of the dataset.")] = Format.LEROBOT,
    codec: Annotated[
        VideoCodec | None, typer.Option("--codec", help="Codec of the videos. Default: the dataset's, or av1.")
    ] = None,
    fps: Annotated[
        int | None,
        typer.Option("--fps", min=1, help="Frames per second, if the control rate is not a whole number."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Write episodes as a LeRobot v3.0 dataset. Running it again adds the new episodes.

    Evaluations and aborted episodes are left out unless the filters ask for them. A dataset of demonstrations receives other
    episodes only with --purpose.
    """
    from dovetail.cli.episode_views import lerobot

    lerobot.export(run, filters, out=out, codec=codec, fps=fps, runs_dir=runs_dir)


def import_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path; a new name with --recipe.")],
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of a LeRobot dataset, v3.0 or v2.1.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="With --recipe: override settings, such as robot.arm=x5."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Create the run from this recipe or file.")
    ] = None,
    rename: Rename = None,
    ignore_names: IgnoreNames = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Add the episodes of a LeRobot dataset to a run, as demonstrations. Episodes it already has are skipped."""
    from dovetail.cli.episode_views import lerobot

    lerobot.import_dataset(
        run,
        dataset,
        recipe=recipe,
        overrides=overrides or [],
        rename=rename or [],
        ignore_names=ignore_names,
        runs_dir=runs_dir,
    )
