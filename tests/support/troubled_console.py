"""`python -m support.troubled_console TROUBLE ARGUMENTS`: the console, in a process whose disk hangs or whose run is huge.

hang=FLAG       every access to a file below the run folder waits while the file FLAG exists
episodes=N      the run has N episodes
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
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


def _enlarge(num_episodes: int) -> None:
    from dovetail.console.recorded_episodes import RecordedEpisodes

    ids, summary = RecordedEpisodes.ids, RecordedEpisodes.summary
    names = [f"e{number:06d}" for number in range(num_episodes)]

    def fake_summary(self: RecordedEpisodes, episode_id: str) -> Any:
        return replace(summary(self, ids(self)[0]) if not known else known[0], id=episode_id)

    known: list[Any] = []

    def fake_ids(self: RecordedEpisodes) -> list[str]:
        if not known:
            known.append(summary(self, ids(self)[0]))
        return list(names)

    RecordedEpisodes.ids, RecordedEpisodes.summary = fake_ids, fake_summary  # type: ignore[method-assign]


def main() -> None:
    trouble, *arguments = sys.argv[1:]
    kind, _, value = trouble.partition("=")
    from dovetail.cli.main import entry

    sys.argv = ["dovetail", *arguments]
    if kind == "hang":
        import dovetail.cli._console  # noqa: F401 - what is imported later would wait, too

        _hang(value, os.path.abspath(arguments[1]))
    else:
        _enlarge(int(value))
    entry()


if __name__ == "__main__":
    main()
