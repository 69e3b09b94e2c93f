"""The exceptions of Dovetail.

    DovetailError
    ├── UsageError            wrong input of the user: exit code 2
    │   ├── ConfigError       a key, value or file of the config
    │   ├── PluginError       a plugin that does not exist or does not fit its contract
    │   ├── SpecMismatch      robot, task, policy or data that do not fit each other
    │   └── RunFolderError    a run folder that exists, is missing or has another config
    └── FailureError          a failure at run time: exit code 1
        ├── RobotError        hardware or simulator
        │   ├── RobotFault    latched: the robot does not move until it is acknowledged
        │   └── StaleObservation
        ├── StoreError        episodes, labels, replay or weights on disk
        ├── CheckpointError   an unreadable or incompatible checkpoint
        ├── PolicyError       a policy that cannot act: its server is gone, slow or sends invalid data
        └── LabelError        a labeler that cannot answer yet; the episode stays unlabeled

A message is one line: what happened, what was expected, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConfigNote",
    "ConfigWarning",
    "DovetailError",
    "FailureError",
    "Interrupted",
    "LabelError",
    "PluginError",
    "PolicyError",
    "PolicyUnreachable",
    "PolicyWarning",
    "RobotError",
    "RobotFault",
    "RunFolderError",
    "SpecMismatch",
    "StaleObservation",
    "StopRequested",
    "StoreError",
    "UsageError",
    "did_you_mean",
    "one_line",
    "printable",
    "shown",
    "stop_failure",
]


class DovetailError(Exception):
    """Base class. The command line exits with `exit_code`."""

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


class PolicyUnreachable(PolicyError):
    """The server of a policy is gone or too slow. The arm holds, and the next request tries again."""


class LabelError(FailureError):
    pass


class ConfigWarning(UserWarning):
    """A config uses a key of an older version, or a setting of another system that has no counterpart."""


class ConfigNote(ConfigWarning):
    """What a setting of another system became. No reason to worry."""


class PolicyWarning(ConfigWarning):
    """A policy may act otherwise than intended: it cuts a prompt, or its checkpoint was trained on axes of other names."""


class Interrupted(Exception):
    """The run was asked to stop and has saved its state. Not an error."""


class StopRequested(Exception):
    """The run is to end, or the operator pressed stop, while no step was recorded. Not an error."""


def one_line(error: BaseException) -> str:
    """The message in one line. Errors that are not Dovetail's get their type in front."""
    kind, message = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, DovetailError) and message:
        return message
    return f"{kind}: {message}" if message else kind


def shown(value: object, *, max_chars: int = 80) -> str:
    """A value from a file or a message, cut and in one line, for an error that quotes it."""
    return printable(" ".join(str(value)[: 4 * max_chars].split())[:max_chars])


def stop_failure(error: BaseException) -> str:
    """What to tell a person if `stop()` of a robot raised this error."""
    return f"stop() failed: {one_line(error)}. The stop is not confirmed: use the robot's own emergency stop"


def printable(text: str) -> str:
    """Replace control characters: a stored text could move the cursor of a terminal or change its title."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest valid name, or else the list of valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Valid: {', '.join(names)}." if names else ""
