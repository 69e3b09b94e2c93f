"""Pictures of a run's episodes: recorded ones, filmed ones, and none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.clock import SimulatedClock
from dovetail.core.errors import StoreError, UsageError
from dovetail.core.types import EpisodeOrder, Outcome, Purpose
from dovetail.episodes.log import EpisodeLog
from dovetail.human.scripted import Demonstrator
from dovetail.reports.film import Filmer, episode_frames
from dovetail.reports.timelapse import Scene, time_lapse
from dovetail.robots.safety import SafeRobot
from dovetail.robots.sim import Cameras
from dovetail.robots.sim.film import Film
from dovetail.runs.folder import RunFolder

SIZE = (80, 60)


def make_run(path: Path, *overrides: str) -> RunFolder:
    quick = ("task=push_cube", "task.time_limit_s=0.5", *overrides)
    return RunFolder.create(path, load(["peg-insertion"], quick))


def demonstrate(folder: RunFolder, episode_id: str, *, traced: bool = True) -> list[np.ndarray]:
    """Record half a second of the expert, and return what the front camera saw at each step."""
    config = folder.config
    task = config.task.build()
    raw = config.robot.build(task=task)
    clock = SimulatedClock()
    clock.on_advance(raw.advance)
    cameras = Cameras(world=raw.world, names=("front",), width=SIZE[0], height=SIZE[1])
    seen: list[np.ndarray] = []

    def probe():
        seen.append(cameras.render("front"))
        return raw.probe() if traced else {}

    actor = config.actor.build(
        robot=SafeRobot(raw, config.safety, clock),
        task=task,
        operator=Demonstrator(task=task, noise=0.0),
        policy=None,
        clock=clock,
        probe=probe,
    )
    seen.clear()  # the actor has looked once, to see what there will be to record
    order = EpisodeOrder(
        id=episode_id, purpose=Purpose.DEMO, seed=3, index=0, config_hash=folder.config_hash, started_unix_ns=1
    )
    EpisodeLog(folder.episodes).commit(actor.run(order))
    cameras.close()
    return seen


def test_an_episode_without_images_is_filmed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    seen = demonstrate(folder, "e1")
    filmed = list(episode_frames(folder, "e1", size=SIZE))
    assert len(filmed) == 5
    np.testing.assert_array_equal(filmed, seen)
    with Filmer(folder, size=SIZE) as filmer:  # from the last one back
        np.testing.assert_array_equal(list(filmer.frames("e1", every=2)), seen[::2])
        np.testing.assert_array_equal(list(filmer.frames("e1", every=3)), seen[1::3])


def test_many_are_filmed_in_one_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    seen = [demonstrate(folder, name) for name in ("e1", "e2")]
    built: list[object] = []
    original = Film.__init__

    def count(self: Film, *arguments, **others) -> None:
        built.append(self)
        original(self, *arguments, **others)

    monkeypatch.setattr(Film, "__init__", count)
    with Filmer(folder, size=SIZE) as filmer:
        scenes = (
            Scene(frames=filmer.frames(name), caption=name, outcome=Outcome.SUCCESS) for name in ("e1", "e2", "e1")
        )
        frames = list(time_lapse(scenes, size_px=80))
    assert len(built) == 1
    pictures = [frame[3:63, 3:83] for frame in frames]  # inside their borders
    np.testing.assert_array_equal(pictures, [*seen[0], *seen[1], *seen[0]])


def test_recorded_images_are_shown_as_they_are(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "robot.images=[front]", "robot.image_size=[80, 60]")
    seen = demonstrate(folder, "e1", traced=False)
    frames = list(episode_frames(folder, "e1", size=(500, 500)))
    assert len(frames) == 6  # the last observation too
    np.testing.assert_array_equal(frames[:5], seen)
    with Filmer(folder) as filmer:
        thinned = filmer.frames("e1", every=2)
        assert next(thinned).tobytes() == seen[1].tobytes()  # one at a time, and the last is among them
        np.testing.assert_array_equal(list(thinned), frames[3::2])


def test_nothing_to_show_says_what_to_record(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "robot.images=[wrist]", "robot.image_size=[16, 16]")
    demonstrate(folder, "e1", traced=False)
    with pytest.raises(UsageError, match=r"no images of camera 'front' \(it has wrist\).*robot.images=\[front\]"):
        episode_frames(folder, "e1")
    with pytest.raises(StoreError, match="no episode e2"):
        episode_frames(folder, "e2")


def test_an_episode_of_another_run_is_refused(tmp_path: Path) -> None:
    theirs = make_run(tmp_path / "theirs")
    demonstrate(theirs, "e1")
    ours = RunFolder.create(tmp_path / "ours", load(["peg-insertion"]))
    EpisodeLog(ours.episodes).commit(EpisodeLog(theirs.episodes).load("e1"))
    with pytest.raises(UsageError, match=r"is of task 'push_cube', but run .* is of task 'peg_insertion'"):
        episode_frames(ours, "e1")
