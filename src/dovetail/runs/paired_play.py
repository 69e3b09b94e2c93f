"""Plays evaluation episodes of two policies in turns, on one robot and task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.config.load import config_hash
from dovetail.config.schema import RunConfig
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import FailureError, UsageError
from dovetail.core.figures import EpisodeScore
from dovetail.core.specs import RobotSpec
from dovetail.core.types import Episode, Outcome, Purpose, WeightSnapshot
from dovetail.live.link import LiveLink
from dovetail.runs.assembly.build import Assembly, build_assembly
from dovetail.runs.assembly.policy_components import check_size
from dovetail.runs.roles.robot import RobotRunner

__all__ = ["Contender", "PairedPlayer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One of the two policies."""

    number: int  # unique; the version under which the robot loads the weights
    config: RunConfig
    components: Path | None  # see Assembly
    robot: str | None  # the robot's name among several
    read_snapshot: Callable[[Assembly], WeightSnapshot | None]  # None: a remote policy
    live: Callable[[RobotSpec], LiveLink] | None  # None: no other process can stop the arm

    @property
    def setup(self) -> tuple[str, Path | None]:
        """Contenders with the same setup differ in their weights only, and use the same robot."""
        kept = self.components
        return config_hash(self.config), kept if kept is not None and kept.is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    assembly: Assembly
    runner: RobotRunner


class PairedPlayer:
    """`play` runs one episode of one policy; `close` at the end.

    Simulated robots of both policies stay open. A real robot, or a policy server, is opened for one policy at a time: if the
    policies differ in more than their weights, each change restarts the processes of the arm.
    """

    def __init__(self, *, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._should_stop = should_stop
        self._setups: dict[tuple[str, Path | None], _Setup] = {}
        self._snapshots: dict[int, WeightSnapshot | None] = {}
        self.simulated = True  # known when a robot is open: whether resets can be repeated

    def play(self, contender: Contender, index: int) -> Episode | None:
        """Run the evaluation episode with this index. None: asked to stop."""
        setup = self._open(contender)
        snapshot = self._read_once(contender, setup.assembly)
        if snapshot is not None:  # two runs may have the same versions
            snapshot = dataclasses.replace(snapshot, version=contender.number)
        episode = setup.runner.run_through(Purpose.EVAL, index, snapshot)
        if episode is None or (episode.outcome is Outcome.ABORTED and setup.runner.stopped):
            return None
        if episode.outcome is Outcome.ABORTED:
            raise FailureError(
                f"episode {index + 1} was cut short by a fault or a bad reading. Check the robot, then compare again"
            )
        return episode

    def score(self, contender: Contender, episode: Episode) -> EpisodeScore:
        """The score of the episode that was just played."""
        return self._open(contender).assembly.score(episode)

    def snapshot(self, contender: Contender) -> WeightSnapshot | None:
        """The weights. Opens the robot, so a policy that does not fit is refused before anything moves."""
        return self._read_once(contender, self._open(contender).assembly)

    def close(self) -> None:
        while self._setups:
            self._setups.popitem()[1].assembly.close()

    def _open(self, contender: Contender) -> _Setup:
        key = contender.setup
        if key not in self._setups:
            if not self.simulated or contender.config.policy_server is not None:
                self.close()  # one process at a time may have the arm, and one run at a time a policy server
            assembly = build_assembly(
                contender.config,
                components=contender.components,
                should_stop=self._should_stop,
                name=contender.robot,
                live=contender.live,
            )
            runner = RobotRunner(assembly, config_hash=config_hash(contender.config))
            self._setups[key] = _Setup(assembly=assembly, runner=runner)
            self.simulated = isinstance(assembly.clock, SimulatedClock)
            if contender.live is None and not self.simulated:
                raise UsageError(
                    "a run folder is in use or cannot be written, so `dovetail stop` could not stop the arm. Wait for the "
                    "run to end, or compare copies of the folders"
                )
        return self._setups[key]

    def _read_once(self, contender: Contender, assembly: Assembly) -> WeightSnapshot | None:
        if contender.number not in self._snapshots:
            snapshot = contender.read_snapshot(assembly)
            if snapshot is not None:
                check_size(
                    contender.config.policy,
                    robot=assembly.robot.spec,
                    snapshot=snapshot,
                    components=contender.components,
                )
            self._snapshots[contender.number] = snapshot
        return self._snapshots[contender.number]
