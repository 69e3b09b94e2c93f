"""An episode rendered afterwards equals the live camera."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config.plugins import config_model, resolve
from dovetail.core.errors import ConfigError, UsageError
from dovetail.robots.sim import Cameras, SimRobot, SimRobotConfig
from dovetail.robots.sim.episode_renderer import EpisodeRenderer

SIZE = {"width": 96, "height": 64}


def build(task_name: str, arm: str = "panda"):
    plugin = resolve("task", task_name)
    task = plugin(config_model(plugin)())
    return task, SimRobot(SimRobotConfig.model_validate({"arm": arm}), task=task)


def record(task_name: str, *, seeds: tuple[int, ...], arm: str = "panda", camera: str = "front"):
    """A few ticks of the expert after each reset: the probe values and the camera images."""
    task, robot = build(task_name, arm)
    cameras = Cameras(world=robot.world, names=(camera,), **SIZE)
    probes, images = [], []
    for seed in seeds:
        task.reset(robot, rng=np.random.default_rng(seed))
        expert = task.expert()
        expert.reset(np.random.default_rng(seed))
        for _ in range(6):
            probes.append(robot.probe())
            images.append(cameras.render(camera))
            robot.send(expert.act(robot.observe()))
            robot.advance(200_000_000)
    cameras.close()
    return {key: np.stack([probe[key] for probe in probes]) for key in probes[0]}, np.stack(images)


@pytest.mark.parametrize(
    ("task", "arm", "camera"),
    [
        ("peg_insertion", "panda", "front"),  # the socket is moved
        ("push_cube", "x5", "wrist"),  # the mark is moved, the cube is free
        ("cap_tightening", "panda", "front"),  # bodies inside the moved bottle are turned
        ("table_cleanup", "panda", "front"),
    ],
)
def test_rendered_frames_equal_the_live_camera(task: str, arm: str, camera: str) -> None:
    columns, images = record(task, seeds=(1, 2), arm=arm, camera=camera)
    assert len(np.unique(images[:, ::4, ::4], axis=0)) == len(images), "the test needs images that differ"
    _, other = build(task, arm)
    with EpisodeRenderer(other.world, camera=camera, **SIZE) as renderer:
        np.testing.assert_array_equal(np.stack(list(renderer.frames(columns))), images)


def test_frame_iterators_may_be_interleaved() -> None:
    columns, images = record("peg_insertion", seeds=(1, 2))
    _, other = build("peg_insertion")
    half = len(images) // 2
    with EpisodeRenderer(other.world, **SIZE) as renderer:
        first = renderer.frames({key: column[:half] for key, column in columns.items()})
        second = renderer.frames({key: column[half:] for key, column in columns.items()})
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            np.testing.assert_array_equal(a, images[index])
            np.testing.assert_array_equal(b, images[half + index])


def test_probe_returns_copies() -> None:
    task, robot = build("peg_insertion")
    task.reset(robot, rng=np.random.default_rng(0))
    before = robot.probe()
    kept = {key: value.copy() for key, value in before.items()}
    task.reset(robot, rng=np.random.default_rng(1))
    for key, value in robot.probe().items():
        np.testing.assert_array_equal(before[key], kept[key])
        assert not np.array_equal(value, kept[key]), key


def test_fixtures_exclude_the_arm() -> None:
    _, robot = build("cap_tightening")
    names = {robot.world.model.body(int(i)).name for i in robot.world.fixtures}
    assert names == {"looked_at", "bottle", "collar", "cap"}
    assert SimRobot().probe()["sim_fixtures"].shape == (0, 7)


def test_columns_of_another_world_are_rejected() -> None:
    _, robot = build("peg_insertion")
    renderer = EpisodeRenderer(robot.world, **SIZE)
    fitting = {key: value[None] for key, value in robot.probe().items()}
    with pytest.raises(UsageError, match="the trace has no sim_fixtures"):
        renderer.frames({"sim_qpos": fitting["sim_qpos"]})
    with pytest.raises(UsageError, match="of another scene"):
        renderer.frames({**fitting, "sim_qpos": np.zeros((1, 3))})
    with pytest.raises(UsageError, match="of another scene"):
        renderer.frames({**fitting, "sim_fixtures": np.zeros((1, 9, 7))})
    with pytest.raises(ConfigError, match="Did you mean 'front'"):
        EpisodeRenderer(robot.world, camera="fornt", **SIZE)
