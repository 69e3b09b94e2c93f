"""The option `--gym ID` of commands that only read a config."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.config.load import Source

__all__ = ["gym_sources"]


def gym_sources(env_id: str | None, sources: Sequence[str], overrides: Sequence[str]) -> list[Source]:
    """The settings that are chosen for an environment, if there is one, and the given sources."""
    if env_id is None:
        return list(sources)
    from dovetail.runs.assembly.gym_choice import choose

    return [choose(env_id, sources, overrides).source, *sources]
