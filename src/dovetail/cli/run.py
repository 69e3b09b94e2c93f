"""`run`, `collect`, `train` and `eval`: what makes a robot move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dovetail.cli._session import Request

__all__ = ["register"]

RUNS_DIR = Path("runs")

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|FILE... [KEY=VALUE]...",
        help="Recipes and config files, merged in order, then overrides such as run.seed=3.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run. Default: recipe and time.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="The folder that runs lie in.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a run; give its name or path in the recipe's place.")
]
Viewer = Annotated[bool, typer.Option("--viewer", help="Open the simulator's own window.")]
Realtime = Annotated[bool, typer.Option("--realtime", help="Pace the simulation by the wall clock.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Short for run.seed=N.", show_default=False)]
Console = Annotated[
    bool, typer.Option("--console/--no-console", help="Open the web page to watch, take over and label beside it.")
]
ConsolePort = Annotated[
    int | None,
    typer.Option(
        "--console-port", min=1, max=65535, help="Its port. Default: the console's own.", show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: dovetail run peg-insertion run.seed=3 --name first-try")(run)
    app.command(epilog="Example: dovetail collect pick-place --demos 50")(collect)
    app.command(
        epilog="Examples: dovetail train pick-place-rtc learner.warmup_updates=10000 | "
        "dovetail train reward-classifier first-try precision=0.99"
    )(train)
    app.command("eval", epilog="Example: dovetail eval first-try --episodes 200")(evaluate)


def run(
    arguments: Arguments = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    console: Console = False,
    console_port: ConsolePort = None,
    quiet: Quiet = False,
) -> None:
    """Learn a task online: demonstrations, then practice with help, then an evaluation and a report.

    Ctrl-C ends a run so that `dovetail run --resume NAME` goes on with it.
    """
    request = _request(locals())
    from dovetail.cli import _session

    raise typer.Exit(_session.start("run", request))


def collect(
    arguments: Arguments = None,
    demos: Annotated[
        int | None, typer.Option("--demos", "-n", min=1, help="How many. Default: the recipe's run.demos.")
    ] = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    console: Console = False,
    console_port: ConsolePort = None,
    quiet: Quiet = False,
) -> None:
    """Record demonstrations into a run folder; `dovetail run --resume NAME` learns from them later."""
    request = _request(locals())
    from dovetail.cli import _session

    overrides = () if demos is None else (f"run.demos={demos}",)
    raise typer.Exit(_session.start("collect", request, overrides=overrides))


def train(
    arguments: Arguments = None,
    evaluation: Annotated[
        bool, typer.Option("--eval/--no-eval", help="Have the robot show what was learned, at the end.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Of reward-classifier: the folder to make. Default: classifiers/TASK."),
    ] = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Learn offline, from demonstrations alone: `learner.warmup_updates` updates of the recipe's algorithm.

    The demonstrations are those of a run (`--resume NAME`, after `dovetail collect` or `dovetail episodes import`); for a
    new run the expert gives `run.demos` of them first.

    `dovetail train reward-classifier RUN [RUN...] [KEY=VALUE]...` trains a success classifier instead, for the labeler
    `classifier`, on the episodes of runs that were recorded with cameras and judged: by people, or by the task. Settings
    such as cameras=[wrist], precision=0.99 or encoder.type=resnet are in docs/rewards.md.
    """
    if arguments and arguments[0].replace("_", "-") == "reward-classifier":
        with _loading():
            from dovetail.cli import _reward_classifier

        raise typer.Exit(
            _reward_classifier.train_reward_classifier(
                arguments[1:], name=name, out=out, runs_dir=runs_dir, seed=seed, quiet=quiet
            )
        )
    if out is not None:
        raise typer.BadParameter("goes with reward-classifier only: a run is named by --name", param_hint="--out")
    request = _request(locals())
    from dovetail.cli import _session

    raise typer.Exit(_session.start("train", request, evaluate=evaluation))


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT",
            help="A run, RUN/checkpoints/best, RUN/checkpoints/last or RUN/weights/v00000009.json.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Other settings than the run's: actor.type=rtc, or policy={type: remote, address: HOST:PORT}.",
        ),
    ] = None,
    num_episodes: Annotated[
        int | None, typer.Option("--episodes", "-n", min=1, help="Default: the run's eval_episodes.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", help="Weights of this version. Default: the newest.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The run's best checkpoint, not its newest.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Other resets than the run's own.")] = None,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    quiet: Quiet = False,
) -> None:
    """Success rate of trained weights, with a 95 % interval; nobody helps.

    Writes nothing but a line in the run's events.jsonl.
    """
    with _loading():
        from dovetail.cli import _evaluation

    raise typer.Exit(
        _evaluation.show_evaluation(
            target,
            overrides=tuple(overrides or ()),
            num_episodes=num_episodes,
            version=version,
            best=best,
            seed=seed,
            runs_dir=runs_dir,
            viewer=viewer,
            realtime=realtime,
            quiet=quiet,
        )
    )


def _request(options: Mapping[str, Any]) -> Request:
    """What a command was asked for, of all its options by name; what is not of every run is its own affair."""
    with _loading():
        from dovetail.cli._session import Request

    known = {field.name: options[field.name] for field in fields(Request) if field.name in options}
    return Request(**{**known, "arguments": tuple(options["arguments"] or ())})


@contextmanager
def _loading() -> Iterator[None]:
    """Something to look at while torch and the simulator are imported."""
    from dovetail.cli._terminal import console

    with console.status("loading torch and the simulator"):
        yield
