"""Images of a simulated scene for the console."""

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.live import rendering
from dovetail.live.rendering import LiveRenderer
from dovetail.runs.folder import RunFolder


@pytest.fixture
def renderer(tmp_path):
    RunFolder.create(tmp_path / "run", load(["push-cube"], ["run.video_camera=wrist"]))
    renderer = LiveRenderer(tmp_path / "run")
    yield renderer
    renderer.close()


def trace_of(renderer):
    world = renderer._world_robot().world
    fixtures = np.concatenate(
        [world.model.body_pos[world.fixtures], world.model.body_quat[world.fixtures]], axis=1
    )
    return {"sim_qpos": world.data.qpos.copy(), "sim_fixtures": fixtures}


def test_all_cameras_of_the_scene_are_offered_and_that_of_the_videos_comes_first(renderer):
    assert renderer.cameras == ("wrist", "front")
    trace = trace_of(renderer)
    images = [renderer.image(camera, trace) for camera in ("front", "wrist")]
    assert [image.shape for image in images] == [(480, 640, 3)] * 2
    assert not np.array_equal(*images)
    assert renderer.image("behind", trace) is None


def test_images_are_smaller_on_a_slow_machine(renderer, monkeypatch):
    monkeypatch.setattr(rendering, "_SLOW_S", 0.0)
    trace = trace_of(renderer)
    sizes = [renderer.image("front", trace).shape[:2] for _ in range(14)]
    assert sizes == [(480, 640)] * 5 + [(360, 480)] * 9


def test_arm_with_its_own_task_is_rendered_with_that_task(tmp_path):
    settings = ["runtime=ray", "cluster.robots={left: {}, right: {robot: {arm: x5}}}"]
    RunFolder.create(tmp_path / "run", load(["push-cube"], settings))
    arms = [LiveRenderer(tmp_path / "run", arm=name)._world_robot().config.arm for name in ("left", "right")]
    assert arms == ["panda", "x5"]
