"""`dovetail episodes`: what was recorded in a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli.run import RUNS_DIR, RunsDir

__all__ = ["Filters", "Run", "filtered", "register"]

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path.")]
_ID_HELP = "An episode's id, the start of one, a number from `ls`, first or last."
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
    "task": Annotated[str | None, _option("task", "Of this task.")],
    "purpose": Annotated[str | None, _option("purpose", "Recorded for: demo, online or eval.")],
    "outcome": Annotated[str | None, _option("outcome", "That ended in: success, failure, timeout or aborted.")],
    "source": Annotated[
        str | None,
        _option("source", "human: a person moved the arm in at least one step; policy: the policy did it alone."),
    ],
    "label": Annotated[str | None, _option("label", "Whose label that counts is: success, failure or none.")],
    "labeler": Annotated[str | None, _option("labeler", "Whose label that counts is by this labeler.")],
    "robot": Annotated[str | None, _option("robot", "Of the robot of this name.")],
    "since": Annotated[
        str | None,
        _option("since", "Begun then or later: 2026-01-31, 2026-01-31T09:30, or 90min, 2h, 3d, 1w ago."),
    ],
    "until": Annotated[str | None, _option("until", "Begun before then; of a date, that day is still in.")],
    "limit": Annotated[int | None, _option("limit", "The newest so many of them.", min=1)],
}


def filtered(command: Callable[..., None], *, without: Sequence[str] = ()) -> Callable[..., None]:
    """Give a command the options that choose episodes, but for those whose names it needs itself; it receives them
    together, as `filters`."""
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
        help="List, look at, film, check, remove, export and import recorded episodes.",
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")] = False,
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
        Path | None, typer.Option("--save", metavar="FILE.rrd", help="Write it for Rerun, without a viewer.")
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """One episode: what it was, what was said of it, its columns, and how rewards and metrics went."""
    from dovetail.cli.episode_views import listing

    listing.show(run, episode, rerun=rerun, save=save, runs_dir=runs_dir)


@filtered
def video(
    *,
    run: Run,
    episode: Annotated[
        str | None, typer.Argument(metavar="ID", help=_ID_HELP + " None with --merge.", show_default=False)
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="A time-lapse of all that are chosen below.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Default: RUN/videos/ID-CAMERA.mp4, or time-lapse-CAMERA.mp4."),
    ] = None,
    camera: Annotated[str, typer.Option("--camera", help="Which camera.")] = "front",
    size: Annotated[int, typer.Option("--size", min=16, max=4096, help="Pixels, where it is filmed anew.")] = 480,
    speed: Annotated[
        float | None,
        typer.Option("--speed", min=0.01, max=1000.0, help="Times real time. Default: 1, with --merge 8."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Make an mp4 of one episode, or of many one after another.

    From their recorded images, or filmed anew in simulation.
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
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Read every file of a run that has a checksum, and say what is damaged and what of it can be had back.

    Exit code 1 if anything is damaged and was not repaired.
    """
    from dovetail.cli.episode_views import verify as view

    raise typer.Exit(view.verify(run, repair=repair, runs_dir=runs_dir))


@filtered
def rm(
    *,
    run: Run,
    episodes: Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID_HELP, show_default=False)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Delete episodes for good: those named, or all that are chosen below. What was said of them stays on record."""
    from dovetail.cli.episode_views import remove

    remove.rm(run, episodes or [], filters, yes=yes, runs_dir=runs_dir)


@filtered
def export(
    *,
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The dataset's folder; one that is there gets the new ones. Default: RUN/lerobot."
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.LEROBOT,
    codec: Annotated[
        VideoCodec | None, typer.Option("--codec", help="Of the videos. Default: as the dataset has it, else av1.")
    ] = None,
    fps: Annotated[
        int | None,
        typer.Option("--fps", min=1, help="Frames a second, where the control rate is not a whole number."),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    filters: Filters,
) -> None:
    """Write episodes as a LeRobot v3.0 dataset; doing it again adds those that are new.

    Evaluations and aborted episodes stay out, unless they are asked for.
    """
    from dovetail.cli.episode_views import lerobot

    lerobot.export(run, filters, out=out, codec=codec, fps=fps, runs_dir=runs_dir)


def import_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run by name or path; a new name with --recipe.")],
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="A LeRobot v3.0 dataset's folder.")],
    recipe: Annotated[str | None, typer.Option("--recipe", help="Start a new run of this recipe or file.")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="THEIRS=OURS",
            help="observation.images.top=front, observation.state[0:7]=joint_pos",
        ),
    ] = None,
    ignore_names: Annotated[
        bool, typer.Option("--ignore-names", help="Joints may be called otherwise: order alone counts.")
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Take the episodes of a LeRobot dataset into a run, as demonstrations. Doing it again is harmless."""
    from dovetail.cli.episode_views import lerobot

    lerobot.import_dataset(
        run, dataset, recipe=recipe, rename=rename or [], ignore_names=ignore_names, runs_dir=runs_dir
    )
