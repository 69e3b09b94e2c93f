"""The `dovetail` script. An emergency stop is handled before the command line is imported, which takes longer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

__all__ = ["entry"]


def entry() -> NoReturn:
    if sys.argv[1:2] == ["stop"]:
        _stop(sys.argv[2:])
    from dovetail.cli import main

    main.entry()


def _stop(arguments: list[str]) -> None:
    """Returns if the arguments are unusual, for example --help."""
    from dovetail.cli import _run_stop
    from dovetail.core.errors import DovetailError

    found = _run_stop.parse_stop(arguments, runs_dir=Path("runs"))
    if found is None:
        return
    try:
        sys.exit(_run_stop.stop(*found))
    except DovetailError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(f"error: STOP was not sent ({what}). Press the robot's own emergency stop\n")
        sys.exit(1)
