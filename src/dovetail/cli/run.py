"""The commands that move a robot: `run`, `collect`, `train` and `eval`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli._rename import IgnoreNames, Rename

if TYPE_CHECKING:
    from dovetail.cli._session import Request

__all__ = ["loading", "register"]

RUNS_DIR = Path("runs")

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|FILE... [KEY=VALUE]...",
        help="Recipes and config files, merged in order. Append key=value to override settings: run.seed=3.",
        show_default=False,
    ),
]
Gym = Annotated[
    str | None,
    typer.Option(
        "--gym",
        metavar="ID",
        help="A Gymnasium environment instead of a recipe, such as FetchReach-v4. Its settings are chosen and printed.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run. Default: the recipe and the time.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of all runs.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue a run: give its name or path instead of a recipe.")
]
Viewer = Annotated[bool, typer.Option("--viewer", help="Open the simulator's window.")]
Realtime = Annotated[bool, typer.Option("--realtime", help="Run the simulation at the speed of the real clock.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Short for run.seed=N.", show_default=False)]
Console = Annotated[
    bool | None,
    typer.Option(
        "--console/--no-console",
        help="Also start the web console: watch, take over, label. Default: only if the operator drives from it.",
        show_default=False,
    ),
]
ConsolePort = Annotated[
    int | None,
    typer.Option(
        "--console-port", min=1, max=65535, help="Port of the console. Default: any free port.", show_default=False
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]

# ---- of `eval`

Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="A run, RUN/checkpoints/best, RUN/checkpoints/last or RUN/weights/v00000009.json.",
    ),
]
EvalOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Override settings of the run: actor.type=rtc, or policy={type: remote, address: HOST:PORT}.",
    ),
]
EvalEpisodes = Annotated[
    int | None,
    typer.Option(
        "--episodes",
        "-n",
        min=1,
        help="Number of episodes. Default: run.eval_episodes; with --open-loop, up to 20.",
    ),
]
OpenLoop = Annotated[
    Path | None,
    typer.Option(
        "--open-loop",
        metavar="DATASET",
        help="Move nothing: compare with the recorded actions of a LeRobot dataset or of a run's episodes.",
    ),
]
OpenLoopOut = Annotated[
    Path | None,
    typer.Option("--out", help="With --open-loop: folder for errors and plots. Default: RUN/open_loop/DATASET."),
]
Every = Annotated[
    int | None,
    typer.Option(
        "--every", min=1, help="With --open-loop: steps between two chunks. Default: the length of a chunk."
    ),
]
Version = Annotated[int | None, typer.Option("--version", help="Version of the weights. Default: the newest.")]
Best = Annotated[bool, typer.Option("--best", help="Evaluate the best checkpoint instead of the newest weights.")]
ResetSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the resets. Default: run.seed.")]


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: dovetail run peg-insertion run.seed=3 --name first-try | dovetail run --gym FetchReach-v4"
    )(run)
    app.command(epilog="Example: dovetail collect pick-place --demos 50")(collect)
    app.command(
        epilog="Examples: dovetail train pick-place-rtc learner.warmup_updates=10000 | "
        "dovetail train reward-classifier first-try precision=0.99"
    )(train)
    app.command(
        "eval",
        epilog="Examples: dovetail eval first-try --episodes 200 | dovetail eval first-try --open-loop lerobot_data/pusht",
    )(evaluate)


def run(
    arguments: Arguments = None,
    gym: Gym = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    console: Console = None,
    console_port: ConsolePort = None,
    quiet: Quiet = False,
) -> None:
    """Learn a task online: demonstrations, behavior cloning, online learning with an operator, evaluation, report.

    Ctrl-C stops a run; `dovetail run --resume NAME` continues it.
    """
    request = _request(locals())
    from dovetail.cli import _session

    raise typer.Exit(_session.start("run", request))


def collect(
    arguments: Arguments = None,
    gym: Gym = None,
    demos: Annotated[
        int | None, typer.Option("--demos", "-n", min=1, help="Number of demonstrations. Default: run.demos.")
    ] = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    console: Console = None,
    console_port: ConsolePort = None,
    quiet: Quiet = False,
) -> None:
    """Record demonstrations in a run folder. `dovetail run --resume NAME` learns from them later."""
    request = _request(locals())
    from dovetail.cli import _session

    overrides = () if demos is None else (f"run.demos={demos}",)
    raise typer.Exit(_session.start("collect", request, overrides=overrides))


def train(
    arguments: Arguments = None,
    evaluation: Annotated[bool, typer.Option("--eval/--no-eval", help="Evaluate the result on the robot.")] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="For reward-classifier: the folder to create. Default: classifiers/TASK."),
    ] = None,
    gym: Gym = None,
    name: Name = None,
    resume: Resume = False,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Learn offline from demonstrations: `learner.warmup_updates` updates of the recipe's algorithm.

    The demonstrations are those of a run (`--resume NAME`, after `dovetail collect` or `dovetail episodes import`). In a
    new run, the task's expert first gives `run.demos` of them.

    `dovetail train reward-classifier RUN [RUN...] [KEY=VALUE]...` trains a success classifier for the labeler `classifier`,
    on episodes with camera images and labels of people or of the task. docs/rewards.md lists its settings, such as
    cameras=[wrist], precision=0.99 or encoder.type=resnet.
    """
    if arguments and arguments[0].replace("_", "-") == "reward-classifier":
        with loading():
            from dovetail.cli import _reward_classifier

        raise typer.Exit(
            _reward_classifier.train_reward_classifier(
                arguments[1:], name=name, out=out, runs_dir=runs_dir, seed=seed, quiet=quiet
            )
        )
    if out is not None:
        raise typer.BadParameter("is for reward-classifier only; use --name to name a run", param_hint="--out")
    request = _request(locals())
    from dovetail.cli import _session

    raise typer.Exit(_session.start("train", request, evaluate=evaluation))


def evaluate(
    target: Target,
    overrides: EvalOverrides = None,
    num_episodes: EvalEpisodes = None,
    open_loop: OpenLoop = None,
    out: OpenLoopOut = None,
    every: Every = None,
    rename: Rename = None,
    ignore_names: IgnoreNames = False,
    version: Version = None,
    best: Best = False,
    seed: ResetSeed = None,
    runs_dir: RunsDir = RUNS_DIR,
    viewer: Viewer = False,
    realtime: Realtime = False,
    quiet: Quiet = False,
) -> None:
    """Measure the success rate of trained weights without an operator, with a 95 % interval.

    Writes only a line in the run's events.jsonl. With --open-loop, no robot moves: the policy gets recorded observations,
    and its actions are compared with the recorded ones, per axis and per step ahead.
    """
    if open_loop is not None:
        if viewer or realtime or seed is not None:
            raise typer.BadParameter(
                "nothing moves: leave out --viewer, --realtime and --seed", param_hint="--open-loop"
            )
        with loading():
            from dovetail.cli import _open_loop

        raise typer.Exit(
            _open_loop.show_open_loop(
                target,
                open_loop,
                overrides=tuple(overrides or ()),
                num_episodes=num_episodes,
                every=every,
                out=out,
                rename=rename or (),
                ignore_names=ignore_names,
                version=version,
                best=best,
                runs_dir=runs_dir,
                quiet=quiet,
            )
        )
    if out is not None or every is not None or rename or ignore_names:
        raise typer.BadParameter("--out, --every, --rename and --ignore-names need --open-loop DATASET")
    with loading():
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
    """The options that all commands share."""
    with loading():
        from dovetail.cli._session import Request

    known = {field.name: options[field.name] for field in fields(Request) if field.name in options}
    return Request(**{**known, "arguments": tuple(options["arguments"] or ())})


@contextmanager
def loading() -> Iterator[None]:
    """Show a spinner while torch and the simulator are imported."""
    from dovetail.cli._terminal import console

    with console.status("loading torch and the simulator"):
        yield
