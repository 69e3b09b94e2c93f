"""`dovetail doctor` measures cameras, and a missing one is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.api.readiness import camera_findings, camera_names
from dovetail.cli.main import main
from dovetail.config.load import load
from dovetail.emulators.camera.server import CameraEmulator, CameraEmulatorConfig


@pytest.fixture
def emulator() -> Any:
    with CameraEmulator(CameraEmulatorConfig(size=(320, 240), fps=25.0)) as camera:
        yield camera


def config(*overrides: str, **cameras: Any) -> Any:
    return load(["push-cube", {"cameras": cameras}], ["robot.realtime=true", *overrides])


def video(url: str, **settings: Any) -> dict[str, Any]:
    return {"type": "video", "url": url, "size": [320, 240], "fps": 25, "timeout_s": 2.0, **settings}


def test_rate_age_and_size_are_measured(emulator: Any) -> None:
    found = list(
        camera_findings(config(front=video(emulator.url), wrist=video(emulator.url, fps=24)), measure_s=1.0)
    )
    assert [one.name for one in found] == ["camera front", "camera wrist"]
    for one in found:
        assert one.ok, one.line
        assert one.detail.startswith("320x240 at ")
        rate_hz = float(one.detail.split()[2])
        assert rate_hz == pytest.approx(25.0, rel=0.1)


def test_slow_camera_is_a_warning_with_a_remedy(emulator: Any) -> None:
    (found,) = camera_findings(config(front=video(emulator.url, fps=60)), measure_s=0.5)
    assert not found.ok and not found.needed
    assert "(set to 60)" in found.line and "another USB port" in found.line


def test_old_frames_are_a_warning(emulator: Any) -> None:
    emulator.misbehave("lie", amount_s=-3600.0)  # its time stands still
    (found,) = camera_findings(config(front=video(emulator.stamped_url, timestamps="stream")), measure_s=1.5)
    assert not found.ok


def test_missing_camera_is_one_needed_line(emulator: Any) -> None:
    found = list(
        camera_findings(config(front=video("http://127.0.0.1:9/x"), wrist=video(emulator.url)), measure_s=0.3)
    )
    assert [one.ok for one in found] == [False, True]
    assert found[0].needed
    assert found[0].line == "camera 'front': cannot open http://127.0.0.1:9/x: Connection refused"


def test_config_without_cameras_has_no_findings() -> None:
    assert camera_names(load(["push-cube"])) == [] and list(camera_findings(load(["push-cube"]))) == []


def test_doctor_names_a_missing_camera_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(
        [
            "doctor",
            "push-cube",
            "robot.realtime=true",
            "cameras.front.type=v4l2",
            "cameras.front.device=/dev/video97",
        ]
    )
    out = capfd.readouterr().out
    assert code == 1
    assert out.count("/dev/video97") == 1 and "cannot open /dev/video97: No such file or directory" in out
    assert "1 thing is missing" in out


def test_camera_at_a_simulated_robot_without_real_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "push-cube", "cameras.front.type=v4l2"]) == 2
    assert "cameras (front) show real time, but robot 'sim' is simulated" in capfd.readouterr().err
