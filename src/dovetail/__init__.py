"""Dovetail: a robot arm learns a manipulation task while it works.

import dovetail

run = dovetail.run("peg-insertion", {"run.env_steps": 600})
print(run.report.verdict)
for episode in dovetail.open("runs/first-try").episodes.filter(purpose="online"):
    print(episode.info.outcome, episode.arrays()["executed"].shape)

See docs/python.md. Importing this package loads neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail import envs

if TYPE_CHECKING:
    from dovetail.api import (
        Comparison,
        Evaluation,
        Interrupted,
        OpenLoop,
        Run,
        collect,
        compare,
        evaluate,
        evaluate_open_loop,
        load_config,
        open,
        run,
        train,
    )

__all__ = [
    "Comparison",
    "Evaluation",
    "Interrupted",
    "OpenLoop",
    "Run",
    "collect",
    "compare",
    "evaluate",
    "evaluate_open_loop",
    "load_config",
    "open",
    "run",
    "train",
]
__version__ = "0.6.0"

envs.register()


def __getattr__(name: str) -> Any:
    """Load the API when it is first used: robot processes import this package too."""
    if name not in __all__:
        raise AttributeError(f"module 'dovetail' has no attribute '{name}'")
    from dovetail import api

    return getattr(api, name)
