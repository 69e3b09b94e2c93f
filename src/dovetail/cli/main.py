"""The entry point. Turns every exception into one line and an exit code.

Exit codes: 0 success, 1 failure, 2 wrong use, 130 interrupted by the user.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from dovetail import __version__
from dovetail.cli import (
    bench,
    cluster,
    compare,
    console,
    deploy,
    emulate,
    encoder,
    episodes,
    inspect,
    label,
    policy,
    robot,
    run,
    serve,
    stop,
    trust,
)
from dovetail.core.errors import ConfigNote, ConfigWarning, DovetailError, printable

__all__ = ["app", "entry", "main"]

app = typer.Typer(
    name="dovetail",
    help="A robot arm learns a manipulation task while it works.",
    epilog="Start with: dovetail run peg-insertion",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.register(app)
compare.register(app)
deploy.register(app)
episodes.register(app)
label.register(app)
inspect.register(app)
console.register(app)
cluster.register(app)
stop.register(app)
serve.register(app)
robot.register(app)
emulate.register(app)
encoder.register(app)
policy.register(app)
bench.register(app)
trust.register(app)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks. Allowed anywhere in the command.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"dovetail {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments  # anywhere: people append it to a command that failed
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _printed_warnings():
            code = app(arguments, prog_name="dovetail", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `dovetail episodes ls RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, exit_code = _explain(error)
        if message:
            sys.stderr.write(f"error: {message}\n")
        return exit_code


@contextlib.contextmanager
def _printed_warnings() -> Iterator[None]:
    """Print a warning about the config as one line on stderr."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def print_line(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, ConfigWarning):
                kind = "note" if issubclass(category, ConfigNote) else "warning"
                sys.stderr.write(f"{kind}: {printable(str(message))}\n")
            else:
                show(message, category, *place)

        warnings.simplefilter("always", ConfigWarning)
        warnings.showwarning = print_line  # type: ignore[assignment]
        yield


def entry() -> NoReturn:
    """The `dovetail` script. Exits at once after the command: unloading torch would take another second."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, DovetailError):
        return _one_line(str(error)), error.exit_code
    if hasattr(error, "format_message"):  # an error about arguments, of typer or of click
        message = _one_line(error.format_message())
        return f"{message} See --help." if message else "", 2  # empty: the help was printed
    if isinstance(error, typer.Abort):
        return "canceled", 130
    if isinstance(error, MemoryError):
        return "out of memory", 1
    what = _one_line(f"{type(error).__name__}: {error}")
    return f"{what} (run again with --debug for the traceback)", 1


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


if __name__ == "__main__":
    entry()
