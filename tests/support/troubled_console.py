"""`python -m support.troubled_console hang=FLAG ARGUMENTS`: the console, in a process whose disk hangs: every access to
a file below the run folder waits while the file FLAG exists."""

from __future__ import annotations

import builtins
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any

__all__: list[str] = []


def _hang(flag: str, folder: str) -> None:
    exists = os.path.exists

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and str(os.fsdecode(path)).startswith(folder):
                while _is_there(flag):
                    time.sleep(0.05)
            return call(path, *arguments, **named)

        return wrapped

    stat = os.stat

    def _is_there(path: str) -> bool:
        try:
            stat(path)
        except FileNotFoundError:
            return False
        return True

    assert exists(folder)
    for module, name in (
        (builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "lstat"), (os, "scandir"), (os, "listdir"),
        (os, "access"), (os, "readlink"), (os, "unlink"), (os, "replace"), (os, "mkdir"),
    ):  # fmt: skip
        setattr(module, name, waiting(getattr(module, name)))


def main() -> None:
    trouble, *arguments = sys.argv[1:]
    kind, _, flag = trouble.partition("=")
    assert kind == "hang", trouble
    import dovetail.cli._console  # noqa: F401 - what is imported later would wait, too
    from dovetail.cli.main import entry

    sys.argv = ["dovetail", *arguments]
    _hang(flag, os.path.abspath(arguments[1]))
    entry()


if __name__ == "__main__":
    main()
