"""One replay per embodiment for arms that share a policy, used as a single replay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.core.contracts import Replay
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Array, Episode, EpisodeStart, Labels, Segment, View, Window
from dovetail.learn.mixed_replay import MixedReplay
from dovetail.policies.embodiments.canonical_space import CanonicalSpace

__all__ = ["ArmReplays"]


class ArmReplays:
    """See the Replay contract. Episodes are stored by embodiment; batches are padded and mix all of them.

    `replays` has the robot and the replay of each embodiment, by its name in the canonical space.
    """

    def __init__(self, canonical_space: CanonicalSpace, replays: Mapping[str, tuple[RobotSpec, Replay]]) -> None:
        self._canonical_space = canonical_space
        self._by_name = {name: replay for name, (_, replay) in replays.items()}
        self._mixed = MixedReplay(canonical_space, list(replays.values()))

    def open(self) -> str | None:
        reasons = {name: replay.open() for name, replay in self._by_name.items()}
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None) or None

    def close(self) -> None:
        for replay in self._by_name.values():
            replay.close()

    def add(self, episode: Episode, labels: Labels) -> None:
        self._of(episode.robot).add(episode, labels)

    def extend(self, start: EpisodeStart, segment: Segment) -> None:
        self._of(start.robot).extend(start, segment)

    def relabel(self, labels: Labels) -> None:
        holds = [replay for replay in self._by_name.values() if replay.was_added(labels.episode_id)]
        (holds or list(self._by_name.values()))[0].relabel(labels)

    def drop(self, episode_id: str) -> None:
        for replay in self._by_name.values():
            replay.drop(episode_id)

    def ids(self) -> list[str]:
        return [episode_id for replay in self._by_name.values() for episode_id in replay.ids()]

    def was_added(self, episode_id: str) -> bool:
        return any(replay.was_added(episode_id) for replay in self._by_name.values())

    def was_dropped(self, episode_id: str) -> bool:
        return any(replay.was_dropped(episode_id) for replay in self._by_name.values())

    def reset(self) -> None:
        for replay in self._by_name.values():
            replay.reset()

    def skip(self, episode_id: str, robot: RobotSpec, *, num_steps: int) -> None:
        self._of(robot).skip(episode_id, robot, num_steps=num_steps)

    def total_rows(self, robot: RobotSpec) -> int:
        return self._of(robot).total_rows(robot)

    def size(self, view: View) -> int:
        return self._mixed.size(view)

    def sample(
        self, into: Mapping[str, Array], *, view: View, rng: np.random.Generator, window: Window | None = None
    ) -> None:
        self._mixed.sample(into, view=view, rng=rng, window=window)

    def _of(self, robot: RobotSpec) -> Replay:
        return self._by_name[self._canonical_space.arm(robot).name]
