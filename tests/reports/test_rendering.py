"""Frames of episodes: recorded, rendered, or missing."""

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
from dovetail.reports.rendering import RunRenderer, episode_frames
from dovetail.reports.timelapse import Scene, time_lapse
from dovetail.robots.safety import SafeRobot
from dovetail.robots.sim import Cameras
from dovetail.robots.sim.episode_renderer import EpisodeRenderer
from dovetail.runs.folder import RunFolder

SIZE = (80, 60)


def make_run(path: Path, *overrides: str) -> RunFolder:
    settings = ("task=push_cube", "task.time_limit_s=0.5", *overrides)
    return RunFolder.create(path, load(["peg-insertion"], settings))


def demonstrate(folder: RunFolder, episode_id: str, *, traced: bool = True) -> list[np.ndarray]:
    """Record half a second of the expert; returns the images of the front camera at each step."""
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
    seen.clear()  # the actor has called it once to learn the columns
    order = EpisodeOrder(
        id=episode_id, purpose=Purpose.DEMO, seed=3, index=0, config_hash=folder.config_hash, started_unix_ns=1
    )
    EpisodeLog(folder.episodes).commit(actor.run(order))
    cameras.close()
    return seen


def test_episode_without_images_is_rendered(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    seen = demonstrate(folder, "e1")
    rendered = list(episode_frames(folder, "e1", size=SIZE))
    assert len(rendered) == 5
    np.testing.assert_array_equal(rendered, seen)
    with RunRenderer(folder, size=SIZE) as renderer:  # each n-th, counted from the last
        np.testing.assert_array_equal(list(renderer.frames("e1", every=2)), seen[::2])
        np.testing.assert_array_equal(list(renderer.frames("e1", every=3)), seen[1::3])


def test_several_episodes_share_one_renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    seen = [demonstrate(folder, name) for name in ("e1", "e2")]
    built: list[object] = []
    original = EpisodeRenderer.__init__

    def count(self: EpisodeRenderer, *arguments, **others) -> None:
        built.append(self)
        original(self, *arguments, **others)

    monkeypatch.setattr(EpisodeRenderer, "__init__", count)
    with RunRenderer(folder, size=SIZE) as renderer:
        scenes = (
            Scene(frames=renderer.frames(name), caption=name, outcome=Outcome.SUCCESS)
            for name in ("e1", "e2", "e1")
        )
        frames = list(time_lapse(scenes, size_px=80))
    assert len(built) == 1
    images = [frame[3:63, 3:83] for frame in frames]  # inside the borders
    np.testing.assert_array_equal(images, [*seen[0], *seen[1], *seen[0]])


def test_recorded_images_are_returned_unchanged(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "robot.images=[front]", "robot.image_size=[80, 60]")
    seen = demonstrate(folder, "e1", traced=False)
    frames = list(episode_frames(folder, "e1", size=(500, 500)))
    assert len(frames) == 6  # including the last observation
    np.testing.assert_array_equal(frames[:5], seen)
    with RunRenderer(folder) as renderer:
        thinned = renderer.frames("e1", every=2)
        assert next(thinned).tobytes() == seen[1].tobytes()  # lazily, and the last frame is included
        np.testing.assert_array_equal(list(thinned), frames[3::2])


def test_error_without_images_names_the_setting(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "robot.images=[wrist]", "robot.image_size=[16, 16]")
    demonstrate(folder, "e1", traced=False)
    with pytest.raises(UsageError, match=r"no images of camera 'front' \(it has wrist\).*robot.images=\[front\]"):
        episode_frames(folder, "e1")
    with pytest.raises(StoreError, match="no episode e2"):
        episode_frames(folder, "e2")


def test_episode_of_another_task_is_refused(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    demonstrate(other, "e1")
    own = RunFolder.create(tmp_path / "own", load(["peg-insertion"]))
    EpisodeLog(own.episodes).commit(EpisodeLog(other.episodes).load("e1"))
    with pytest.raises(UsageError, match=r"is of task 'push_cube', but run .* is of task 'peg_insertion'"):
        episode_frames(own, "e1")
