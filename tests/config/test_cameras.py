"""The section `cameras`: several plugins by name."""

from pathlib import Path

import pytest
import yaml

from dovetail.config import trust as trusting
from dovetail.config.cluster import RobotPlace
from dovetail.config.describe import describe
from dovetail.config.json_schema import json_schema
from dovetail.config.load import dump_yaml, load, load_saved, robot_config, save
from dovetail.core.errors import ConfigError, PluginError

FRONT = {"type": "video", "url": "http://127.0.0.1:8000/video.mjpg", "size": [320, 240]}


def config(*overrides: str, **cameras: object):
    return load(["push-cube", {"cameras": cameras}], overrides)


def test_there_are_no_cameras_by_default() -> None:
    assert load(["push-cube"]).cameras == {}


def test_cameras_are_plugins_by_name_and_survive_the_file() -> None:
    loaded = config(front=FRONT, wrist="v4l2")
    assert loaded.cameras["front"].type == "video" and loaded.cameras["front"].config.size == (320, 240)
    assert loaded.cameras["wrist"].config.device == "/dev/video0"
    assert load([yaml.safe_load(dump_yaml(loaded))]) == loaded


def test_overrides_reach_one_camera_and_another_type_replaces_it() -> None:
    loaded = config("cameras.front.size=[64, 48]", "cameras.wrist.device=/dev/video2", front=FRONT, wrist="v4l2")
    assert loaded.cameras["front"].config.size == (64, 48)
    assert loaded.cameras["wrist"].config.device == "/dev/video2"
    loaded = config("cameras.front.type=v4l2", front=FRONT)
    assert loaded.cameras["front"].type == "v4l2"


def test_null_removes_a_camera() -> None:
    assert set(config("cameras.front=null", front=FRONT, wrist="v4l2").cameras) == {"wrist"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cameras.front.sise=3", r"unknown key 'cameras.front.sise'. Did you mean 'cameras.front.size'\?"),
        ("cameras.front.rotate=45", r"'cameras.front.rotate' should be 0, 90, 180 or 270, got 45"),
        ("cameras.Front.type=v4l2", r"cameras.Front"),
    ],
)
def test_wrong_setting_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(override, front=FRONT)


def test_unknown_camera_type_lists_the_valid_ones() -> None:
    with pytest.raises(
        PluginError, match=r"'cameras.front.type': no camera named 'webcam'.*realsense.*v4l2.*video"
    ):
        config(front={"type": "webcam"})


def test_config_show_describes_each_camera() -> None:
    text = describe(config(front=FRONT, wrist="v4l2"))
    assert "cameras:\n  front:\n    type: video\n" in text
    assert "    rotate: 0" in text and "# Clockwise rotation in degrees" in text
    assert yaml.safe_load(text)["cameras"]["wrist"]["device"] == "/dev/video0"
    assert load([yaml.safe_load(describe(config(front=FRONT), all_settings=True))]) == config(front=FRONT)


def test_json_schema_knows_cameras() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    assert "camera.v4l2" in schema["$defs"]
    base = {"base": "push-cube"}
    jsonschema.validate({**base, "cameras": {"front": FRONT, "wrist": "v4l2"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**base, "cameras": {"front": {**FRONT, "rotate": 45}}}, schema)


def test_arm_has_its_own_cameras() -> None:
    run = config(front=FRONT, wrist="v4l2")
    place = RobotPlace(cameras={"front": None, "wrist": {"device": "/dev/video4"}, "side": "v4l2"})
    own = robot_config(run, "left", place).cameras
    assert set(own) == {"wrist", "side"} and own["wrist"].config.device == "/dev/video4"


@pytest.mark.parametrize(
    ("cameras", "named"),
    [
        ({"front": {**FRONT}}, "the camera 'video'"),
        ({"front": {"type": "v4l2", "device": "/dev/video0"}}, "the camera 'v4l2'"),
        ({"front": "realsense"}, "the camera 'realsense'"),
        ({"front": {"type": "evil:Camera"}}, "the camera 'evil:Camera'"),
        ({"front": "evil:Camera"}, "the camera 'evil:Camera'"),
    ],
)
def test_stored_config_of_another_user_may_not_name_cameras(cameras: object, named: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=named):
        trusting.check_stored({"cameras": cameras}, tmp_path)
    with pytest.raises(PluginError, match=named):
        trusting.check_stored({"cluster": {"robots": {"left": {"cameras": cameras}}}}, tmp_path)


def test_own_config_with_cameras_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    save(config(front=FRONT), tmp_path / "run")
    assert load_saved(tmp_path / "run").config == config(front=FRONT)


def test_device_of_the_learner_is_no_camera(tmp_path: Path) -> None:
    trusting.check_stored({"device": "cuda:1"}, tmp_path)
