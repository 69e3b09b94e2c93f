"""Kills while the gate of a run on Ray plays pairs: the same comparison is finished, and every pair counts once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dovetail.core.types import Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.deployment import Deployment
from dovetail.runs.folder import RunFolder
from support.planted_skill import PLANTED
from support.ray_world import World, world

_PLAN = "[[0, 0.5], [1, 0.9], [60, 0.1]]"  # skill from so many updates on
_ENDS = ("deployed", "rejected")
_CHANGES = ("first", "deployed", "rolled back")


def layout(folder: Path) -> str:
    planted = PLANTED.format(worn=folder / "worn", plan=_PLAN)
    return planted.replace("{", "{{").replace("}", "}}") + "runtime: ray\n"


class Watcher:
    """Reads deployment.json all the time: `deployed` has each version in turn, `pairs` those of each comparison so far."""

    def __init__(self, run: World) -> None:
        self._run, self._ended = run, threading.Event()
        self.deployed: list[int] = []
        self.pairs: dict[tuple[int, int], tuple[tuple[str, str], ...]] = {}  # number and candidate: ids
        self.lost: list[str] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.003):
            if (self._run.path / "deployment.json").exists():
                self._read(Deployment.load(RunFolder.open(self._run.path)))

    def _read(self, state: Deployment) -> None:
        if state.deployed.version is not None and state.deployed.version not in self.deployed[-1:]:
            self.deployed.append(state.deployed.version)
        if state.comparison is not None and state.candidate_version is not None:
            key = (state.comparison.number, state.candidate_version)
            now, before = tuple(pair.ids for pair in state.comparison.pairs), self.pairs.get(key, ())
            if now[: len(before)] != before:
                self.lost.append(f"comparison {key} had {before}, then {now}")
            self.pairs[key] = now

    def wait_for_pairs(self, num_pairs: int) -> tuple[int, int]:
        """Wait until a comparison that is not over has so many pairs."""

        def running() -> tuple[int, int] | None:
            state = Deployment.load(RunFolder.open(self._run.path)) if self.pairs else None
            if state is None or state.comparison is None or state.candidate_version is None:
                return None
            is_there = len(state.comparison.pairs) >= num_pairs and not state.comparison.is_finished
            return (state.comparison.number, state.candidate_version) if is_there else None

        found: tuple[int, int] = self._run.wait_until(running, what=f"{num_pairs} pairs")
        return found


def check(run: World, watched: Watcher, killed: list[tuple[int, int]]) -> None:
    assert not watched.lost
    events = run.events("deployment")
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))  # none lost, none twice
    made = [
        int(Path(event["to"]).stem[1:]) if event["change"] == "rolled back" else event["version"]
        for event in events
        if event["change"] in _CHANGES
    ]
    assert watched.deployed == made  # no version is deployed without an event
    for key in killed:  # the comparison that was killed has ended with its own candidate, and with all its pairs
        ends = [event for event in events if event["change"] in _ENDS and event["version"] == key[1]]
        assert [event["num_pairs"] >= len(watched.pairs[key]) > 0 for event in ends] == [True]
        assert list(watched.pairs).count(key) == 1
    ids = [one for pairs in watched.pairs.values() for pair in pairs for one in pair]
    assert len(ids) == len(set(ids))
    log = EpisodeLog(run.path / "episodes")
    evaluations = [info for info in map(log.manifest, log.ids()) if info.purpose is Purpose.EVAL]
    goals = {
        info.id: tuple(log.load(info.id).column("observation/goal")[0])
        for info in evaluations
        if info.outcome is not Outcome.ABORTED
    }
    for pairs in watched.pairs.values():
        assert all(goals[deployed] == goals[candidate] for deployed, candidate in pairs)  # the same reset
        assert len({goals[deployed] for deployed, _ in pairs}) == len(pairs)
    # each reset is one pair: an episode of a pair that a kill cut short is played again on the same reset
    num_pairs = sum(event.get("num_pairs", 0) for event in events if event["change"] in _ENDS)
    assert len(set(goals.values())) == num_pairs + 2  # run.eval_episodes
    acted = {
        version
        for info in map(log.manifest, log.ids())
        if info.purpose is Purpose.ONLINE
        for version in info.policy_versions
        if version
    }
    assert acted <= set(made)


@pytest.mark.extended
@pytest.mark.parametrize("role", ["driver", "RobotRole"])
def test_comparison_after_a_kill_goes_on_with_its_pairs(tmp_path: Path, role: str) -> None:
    with world(tmp_path, layout=layout(tmp_path)) as run, Watcher(run) as watched:
        run.start("run.env_steps=800")
        killed: list[tuple[int, int]] = []
        for num_pairs in (2, 4):
            killed.append(watched.wait_for_pairs(num_pairs))
            if role == "driver":
                run.kill_driver()
                run.wait_for_no_processes()
                run.resume()
            else:
                num_restarts = run.num_restarts("robot-0")
                run.kill(role)
                run.wait_until(
                    lambda before=num_restarts: run.num_restarts("robot-0") > before, what="the arm is back"
                )
        run.wait_for_report()
    check(run, watched, killed)
