"""Names of episodes: they sort by time, never collide, and are safe as the name of a folder."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

import numpy as np

from dovetail.core.clock import NS_PER_S
from dovetail.core.errors import UsageError

__all__ = ["check_episode_id", "is_episode_id", "new_episode_id"]

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LONGEST_ROBOT = 32


def new_episode_id(*, unix_ns: int, robot: str, rng: np.random.Generator | None = None) -> str:
    """`20260101T093000-123456789-panda-9f86d081c3a1`: time in UTC, who, and 48 random bits.

    No counter: one that restarts with its process is how an earlier system lost every episode after a
    restart. The bits come from the operating system, so two robots of one name, or two processes of one seed,
    stay apart. Pass an `rng` only where a run must be repeatable to the byte; its stream must then be this
    episode's own.
    """
    if unix_ns < 0:
        raise UsageError(f"an episode cannot start before 1970: unix_ns is {unix_ns}")
    seconds, nanoseconds = divmod(unix_ns, NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC)
    name = re.sub(r"[^a-z0-9]+", "_", robot.lower()).strip("_")[:_LONGEST_ROBOT] or "robot"
    token = secrets.token_hex(6) if rng is None else rng.bytes(6).hex()
    return f"{moment:%Y%m%dT%H%M%S}-{nanoseconds:09d}-{name}-{token}"


def is_episode_id(text: str) -> bool:
    """Whether this may be an episode's id, and so the name of its folder."""
    return _VALID.fullmatch(text) is not None


def check_episode_id(episode_id: str) -> str:
    """The id itself, if it may name a folder; ids also come from the network and the command line."""
    if not is_episode_id(episode_id):
        raise UsageError(
            f"{episode_id!r} is not an episode id: letters, digits, '.', '_' and '-' only, "
            "not starting with a dot or a dash, at most 120"
        )
    return episode_id
