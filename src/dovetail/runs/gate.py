"""The gate of a run: which weights act on the arm while the learner publishes new ones.

    gate.begin()      before the first online episode: the first weights are deployed
    gate.check()      between online episodes: requests of people, the watch over the deployed policy, and comparisons
    gate.finish()     after the last update: the last weights are compared too

In a comparison, deployed policy and candidate play the same resets, in random order and without help. These episodes are
evaluations: they are in the log, and never train. `deployment.json` holds every pair, so a killed run continues after the
last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from dovetail.config.deploy import DeployConfig
from dovetail.core.errors import UsageError
from dovetail.core.streams import stream
from dovetail.core.types import Purpose, WeightSnapshot
from dovetail.runs.deployment import Deployment
from dovetail.runs.deployment_request import Change, apply_change, take_request
from dovetail.runs.folder import RunFolder
from dovetail.runs.paired_comparison import PairedComparison, PlayedPair
from dovetail.runs.roles.robot import EpisodeResult
from dovetail.runs.status import RunStatus
from dovetail.runs.watched_episodes import WatchedEpisodes
from dovetail.weights.store import DiskWeightStore

__all__ = ["Gate", "GateRuntime"]

FIRST_RESET = 1_000_000  # index of the first reset of a comparison: evaluations use the indices from 0 on
ArmGroup = tuple[str, ...]


class GateRuntime(Protocol):
    """What the gate needs of `runs.run.Runtime`."""

    status: RunStatus

    @property
    def groups(self) -> Sequence[ArmGroup]: ...

    def run_episodes(
        self,
        purpose: Purpose,
        wanted: Mapping[ArmGroup, range],
        weights: WeightSnapshot | None,
        *,
        new_actor: bool = True,
    ) -> dict[ArmGroup, list[EpisodeResult]]: ...

    def paused(self) -> AbstractContextManager[WeightSnapshot]: ...

    def newest_weights(self) -> WeightSnapshot: ...

    def serve_pinned(self) -> None: ...

    def report_status(self) -> None: ...


class Gate:
    """See the module. Every change is in `deployment.json` and in the events of the run."""

    def __init__(self, folder: RunFolder, settings: DeployConfig, runtime: GateRuntime) -> None:
        self._folder, self._settings, self._runtime = folder, settings, runtime
        self._state = Deployment.load(folder)
        self._watched = WatchedEpisodes(folder)
        self._weights = DiskWeightStore(folder.weights)

    def begin(self) -> None:
        """Deploy the newest weights, unless an earlier process has deployed some."""
        state = self._state
        if state.deployed.version is not None:
            state.recover()
            self._runtime.serve_pinned()
            return
        if self._folder.read_json("deployment.json") is not None:
            raise UsageError(
                f"{state.deployed.weights} is deployed in {self._folder.path}, and this run cannot act with it. Roll it "
                f"back first: dovetail deploy {self._folder.path} --roll-back"
            )
        with self._runtime.paused() as weights:
            state.begin(weights.version, compare_at=self._next())

    def check(self) -> bool:
        """Make what is due. True: a comparison was made, so the phase of the run has changed."""
        self._take_request()
        test = self._watched.count(self._state, num_episodes=self._runtime.status.episodes)
        if test is not None and test.alarm:
            self._deployed_changed()
        if not self._is_due:
            return False
        with self._runtime.paused() as newest:
            self._compare(newest)
            self._runtime.serve_pinned()
        return True

    def finish(self) -> None:
        """Compare the last weights of the run with the deployed ones."""
        self._take_request()
        newest = self._runtime.newest_weights()
        while not self._compare(
            newest
        ):  # a roll-back during the comparison: there are fewer policies to return to
            pass

    def weights(self) -> WeightSnapshot:
        """The deployed weights."""
        assert self._state.deployed.version is not None, "call `begin` first"
        return self._weights.load(self._state.deployed.version)

    # ---- requests and roll-backs

    def _take_request(self) -> bool:
        """Whether a person has changed what is deployed."""

        def apply(change: Change, seen: str, by: str) -> None:
            apply_change(self._state, change, seen=seen, by=by)
            self._state.compare_at = self._next()

        if not take_request(self._folder, apply):
            return False
        self._deployed_changed()
        return True

    def _deployed_changed(self) -> None:
        if self._state.candidate is not None:  # it was compared with another policy
            self._state.withdraw()
        self._runtime.serve_pinned()

    # ---- comparisons

    @property
    def _is_due(self) -> bool:
        comparison = self._state.comparison
        if comparison is not None and not comparison.is_finished:
            return True
        return self._runtime.status.episodes >= self._state.compare_at

    def _next(self) -> int:
        return self._runtime.status.episodes + self._settings.every_episodes

    def _compare(self, newest: WeightSnapshot) -> bool:
        """Continue the comparison of the candidate, or begin one of the newest weights. False: it has no result, because
        what is deployed has changed."""
        state, settings = self._state, self._settings
        if state.comparison is None or state.comparison.is_finished:
            if newest.version in (state.deployed.version, state.candidate_version):
                state.compare_at = self._next()  # nothing was learned since
                return True
            if state.candidate is not None:
                state.withdraw()
            comparison = PairedComparison(
                number=state.num_compared, max_pairs=settings.max_pairs, margin=settings.margin
            )
            state.propose_version(newest.version, comparison)
        assert state.candidate_version is not None and state.deployed.version is not None
        deployed, candidate = state.deployed.version, state.candidate_version
        self._runtime.status.begin(
            f"evaluating: candidate {candidate} and deployed {deployed}", settings.max_pairs
        )
        if not self._play(self._weights.load(deployed), self._weights.load(candidate)):
            return False
        self._decide()
        return True

    def _play(self, deployed: WeightSnapshot, candidate: WeightSnapshot) -> bool:
        """Play pairs until the test has an answer. False: what is deployed has changed meanwhile."""
        state, status = self._state, self._runtime.status
        while True:
            assert state.comparison is not None
            if self._watch_pairs(state.comparison) or self._take_request():
                return False
            if state.comparison.is_finished:
                return True
            status.done = len(state.comparison.pairs)
            self._runtime.report_status()
            state.add_pairs(self._play_resets(state.comparison, (deployed, candidate)))

    def _play_resets(
        self, comparison: PairedComparison, weights: tuple[WeightSnapshot, WeightSnapshot]
    ) -> PairedComparison:
        """Each group of arms plays as many resets as it has arms, first with one policy, then with the other."""
        first = FIRST_RESET + comparison.number * comparison.max_pairs + comparison.num_resets
        groups = self._runtime.groups
        wanted = {group: range(first, first + len(group)) for group in groups}
        order = [0, 1]
        stream(self._folder.config.run.seed, "gate", first).shuffle(order)
        played: dict[int, dict[ArmGroup, list[EpisodeResult]]] = {}
        for side in order:
            played[side] = self._runtime.run_episodes(Purpose.EVAL, wanted, weights[side], new_actor=False)
        pairs = [
            PlayedPair(ids=(a.id, b.id), scores=(a.score, b.score))
            for group in groups
            if group in played[0] and group in played[1]
            for a, b in zip(played[0][group], played[1][group], strict=True)
        ]
        used = comparison.num_resets + max(map(len, groups))
        return replace(comparison.with_pairs(pairs), num_resets=used)

    def _watch_pairs(self, comparison: PairedComparison) -> bool:
        """Count the episodes of the deployed policy. Whether it was rolled back."""
        state, known = self._state, set(self._state.watched)
        for pair in comparison.pairs:
            if pair.ids[0] not in known and pair.scores[0].success is not None:
                test = state.observe(success=pair.scores[0].success, episode_id=pair.ids[0])
                if test is not None and test.alarm:
                    self._state.compare_at = self._runtime.status.episodes  # the newest weights may be better
                    self._deployed_changed()
                    return True
        return False

    def _decide(self) -> None:
        state = self._state
        comparison = state.comparison
        assert comparison is not None
        state.compare_at = self._next()
        if self._settings.gate == "person":
            state.wait_for_person()
        else:
            state.decide(comparison.answer, rate=comparison.expected_rate)
