"""Episode ids: sorted by time, unique, and valid as folder names."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError

__all__ = ["check_episode_id", "is_episode_id", "new_episode_id"]

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_MAX_ROBOT_CHARS = 32


def new_episode_id(*, unix_ns: int, robot: str, rng: np.random.Generator | None = None) -> str:
    """Return an id such as `20260101T093000-123456789-panda-9f86d081c3a1`: UTC time, robot, 48 random bits.

    There is no counter, because a counter that restarts with its process would repeat ids. The random bits come from the
    operating system, so robots of the same name and processes of the same seed get different ids. Pass an `rng` only if the
    run must be reproducible to the byte, with a stream that only this episode uses.
    """
    if unix_ns < 0:
        raise UsageError(f"unix_ns is {unix_ns}, but an episode cannot start before 1970")
    seconds, nanoseconds = divmod(unix_ns, NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC)
    name = re.sub(r"[^a-z0-9]+", "_", robot.lower()).strip("_")[:_MAX_ROBOT_CHARS] or "robot"
    token = secrets.token_hex(6) if rng is None else rng.bytes(6).hex()
    return f"{moment:%Y%m%dT%H%M%S}-{nanoseconds:09d}-{name}-{token}"


def is_episode_id(text: str) -> bool:
    """Whether the text is a valid episode id and folder name."""
    return _VALID.fullmatch(text) is not None


def check_episode_id(episode_id: str) -> str:
    """Return the id if it is valid. Call it for ids from the network and the command line."""
    if not is_episode_id(episode_id):
        raise UsageError(
            f"{episode_id!r} is not an episode id: use at most 120 letters, digits, '.', '_' and '-', "
            "and start with a letter or a digit"
        )
    return episode_id
