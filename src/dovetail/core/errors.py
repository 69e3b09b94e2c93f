"""Everything Dovetail raises on purpose.

    DovetailError
    ├── UsageError            the person asked for something that cannot be: exit code 2
    │   ├── ConfigError       a key, value or file of the configuration
    │   ├── PluginError       a name that resolves to nothing, or to the wrong thing
    │   ├── SpecMismatch      two sides that do not fit each other
    │   └── RunFolderError    a run folder that exists, is missing, or belongs to another config
    └── FailureError          something broke while it ran: exit code 1
        ├── RobotError        hardware or simulator
        │   ├── RobotFault    latched: nothing moves until it is acknowledged
        │   └── StaleObservation
        ├── StoreError        episodes, labels, replay or weights on disk
        ├── CheckpointError   a checkpoint that is not one
        ├── PolicyError       a policy that cannot answer: its server is gone, slow, or talks nonsense
        └── LabelError        a labeler that cannot answer, for the same reasons: the episode waits

A message is one line: what is wrong, what was got, what is valid or what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DovetailError",
    "FailureError",
    "LabelError",
    "PluginError",
    "PolicyError",
    "RobotError",
    "RobotFault",
    "RunFolderError",
    "SpecMismatch",
    "StaleObservation",
    "StoreError",
    "UsageError",
    "did_you_mean",
    "one_line",
]


class DovetailError(Exception):
    """Base of all; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(DovetailError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class PluginError(UsageError):
    pass


class SpecMismatch(UsageError):
    pass


class RunFolderError(UsageError):
    pass


class FailureError(DovetailError):
    exit_code = 1


class RobotError(FailureError):
    pass


class RobotFault(RobotError):
    pass


class StaleObservation(RobotError):
    pass


class StoreError(FailureError):
    pass


class CheckpointError(FailureError):
    pass


class PolicyError(FailureError):
    pass


class LabelError(FailureError):
    pass


def one_line(error: BaseException) -> str:
    """As it is told from one process to another: our own by what they say, others by their kind too."""
    kind, message = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, DovetailError) and message:
        return message
    return f"{kind}: {message}" if message else kind


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Say "Did you mean 'x'?" for the nearest valid name; otherwise what there is."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Valid: {', '.join(names)}." if names else ""
