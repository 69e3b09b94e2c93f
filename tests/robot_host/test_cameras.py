"""A network camera next to an arm in real processes: full-size video in the episode, and a fault with the camera's name."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dovetail.config.load import load
from dovetail.core.types import Outcome, Purpose
from dovetail.emulators.camera.pictures import NUM_PICTURES, picture_number
from dovetail.emulators.camera.server import CameraEmulator, CameraEmulatorConfig
from dovetail.episodes.log import EpisodeLog
from dovetail.runs.assembly.build import build_assembly
from dovetail.runs.roles.robot import order_episode
from support.depth_camera import FIRST_MM

TESTS = Path(__file__).parents[1]

SCENE = """
task: {{type: "dovetail.testing.fakes:FakeTask", max_steps: {steps}, tolerance: 0.0}}
robot: {{type: "dovetail.testing.live:LiveArm", control_hz: 20.0}}
cameras: {{front: {{type: video, url: "{url}", size: [640, 480]}}}}
policy: {{type: "dovetail.testing.fake_learning:FakePolicy", horizon: 8}}
actor: {{type: naive, layout: {layout}, flush_every_s: 0.5}}
safety: {{controller_watchdog: true}}
algorithm: {{type: "dovetail.testing.fake_learning:FakeAlgorithm"}}
"""

DEPTH = """
task: {type: "dovetail.testing.fakes:FakeTask", max_steps: 12, tolerance: 0.0}
robot: {type: "dovetail.testing.live:LiveArm", control_hz: 20.0}
cameras: {wrist: {type: "support.depth_camera:DepthCamera"}}
policy:
  type: gaussian_mlp
  hidden: [8]
  inputs: [wrist, wrist_depth]
  history: {wrist: 4, wrist_depth: 4}
  encoder: {type: cnn, features: 4, depth_range_m: [0.5, 2.0]}
actor: {type: sequential, layout: processes}
algorithm: imitation
"""


@pytest.fixture
def emulator():
    with CameraEmulator(CameraEmulatorConfig(size=(640, 480), fps=15.0)) as camera:
        yield camera


@pytest.fixture
def assembly_of(emulator, tmp_path):
    made = []

    def make(layout, *, steps):
        path = tmp_path / "scene.yaml"
        path.write_text(SCENE.format(url=emulator.url, layout=layout, steps=steps))
        made.append(build_assembly(load([path])))
        return made[-1]

    yield make
    for assembly in made:
        assembly.close()


@pytest.mark.extended
@pytest.mark.parametrize("layout", ["one_process", "processes"])
def test_episode_keeps_each_frame_in_full_size(assembly_of, tmp_path, layout):
    assembly = assembly_of(layout, steps=30)
    order = order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="0" * 64)
    episode = assembly.actor_for(Purpose.ONLINE).run(order)
    frames = episode.column("observation/front")
    assert frames.shape == (30, 480, 640, 3)
    numbers = np.array([picture_number(frame) for frame in frames])
    steps = np.diff(numbers) % NUM_PICTURES
    assert steps.max() < NUM_PICTURES // 2 and steps.sum() >= 10, "in order; a frame may be seen twice or missed"
    log = EpisodeLog(tmp_path / "episodes")
    log.commit(episode)
    stored = log.images(episode.id, "front")
    assert stored.shape[1:] == (480, 640, 3)
    assert [picture_number(frame) for frame in stored[:30]] == list(numbers)
    assert len({picture_number(frame) for frame in stored}) > 5


@pytest.mark.extended
def test_camera_that_disconnects_stops_the_arm_with_its_name(assembly_of, emulator):
    assembly = assembly_of("processes", steps=100_000)
    order = order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="0" * 64)
    actor = assembly.actor_for(Purpose.ONLINE)

    def disconnect_later():
        end_s = time.monotonic() + 30.0
        while emulator.num_streams == 0 and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(1.0)
        emulator.misbehave("disconnect")

    thread = threading.Thread(target=disconnect_later)
    thread.start()
    episode = actor.run(order)
    thread.join()
    assert episode.outcome is Outcome.ABORTED
    assert "camera 'front' is lost" in actor.fault
    emulator.misbehave("none")
    actor.acknowledge()
    assert actor.fault is None


@pytest.mark.extended
def test_depth_and_color_of_one_frame_reach_the_policy_and_the_log(tmp_path, monkeypatch):
    """Through all processes: the policy in its own process acts with four frames of each."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    path = tmp_path / "scene.yaml"
    path.write_text(DEPTH)
    assembly = build_assembly(load([path]))
    try:
        policy = assembly.policy().spec
        assert policy.observation["wrist_depth"].dtype == "uint16" and policy.history["wrist_depth"] == 4
        order = order_episode(assembly, purpose=Purpose.ONLINE, index=0, config_hash="0" * 64)
        actor = assembly.actor_for(Purpose.ONLINE)
        episode = actor.run(order)
        assert actor.fault is None and len(episode) == 12
    finally:
        assembly.close()
    log = EpisodeLog(tmp_path / "episodes")
    log.commit(episode)
    for found in (episode, log.load(episode.id)):
        depth = found.column("observation/wrist_depth")
        assert depth.shape == (12, 48, 64, 1) and depth.dtype == np.uint16
        millimeters = depth[:, 0, 0, 0].astype(int)
        assert (depth == depth[:, :1, :1]).all() and (np.diff(millimeters) >= 0).all() and np.ptp(millimeters) > 3
        color = found.column("observation/wrist")[:, 24, 32, 0].astype(int)
        np.testing.assert_allclose(color, (millimeters - FIRST_MM) % 256, atol=3)  # video is lossy
