"""The frame rates of a config's cameras."""

from dovetail.config.load import load
from dovetail.runs.assembly.camera_rates import max_camera_fps


def test_devices_keep_to_their_rate_and_streams_may_be_faster() -> None:
    cameras = (
        "cameras={front: {type: v4l2, fps: 25}, wrist: {type: realsense, serial: '1', depth: true, fps: 15}, "
        "side: {type: video, url: 'http://127.0.0.1:1/x', fps: 5}}"
    )
    rates = max_camera_fps(load(["peg-insertion"], ["robot.realtime=true", cameras]))
    assert {key: rates.get(key) for key in ("front", "wrist", "wrist_depth", "side")} == {
        "front": 25.0,
        "wrist": 15.0,
        "wrist_depth": 15.0,
        "side": None,
    }
