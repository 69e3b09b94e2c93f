"""STOP of an input device while the role of an arm starts again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.config.load import load
from dovetail.live.run_stop import RunStop
from dovetail.runtime.ray.roles import robot as robot_role
from dovetail.testing.input_devices import EmulatedGamepad
from support.waiting import wait_until


def test_role_of_an_arm_hears_a_press_before_it_has_the_lock_of_the_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Locked(Exception):
        pass

    with EmulatedGamepad(tmp_path / "pad") as pad, RunStop.create(tmp_path) as stop:

        def lock(path: Path) -> None:  # of a process that has not ended yet
            pad.stop()
            wait_until(lambda: stop.emergency)
            raise Locked

        monkeypatch.setattr(robot_role, "exclusive_lock", lock)
        plain = load(["peg-insertion"], pad.overrides).model_dump(mode="json")
        arm = robot_role.Arm(
            name="left", config=plain, config_hash="h", run=tmp_path, key="k", stop_token=stop.token
        )
        with pytest.raises(Locked):
            robot_role.RobotRole(arm, store=None, weights=None)
        assert stop.source == "gamepad of left"


def test_role_of_an_arm_is_imported_without_torch() -> None:
    """It would delay the moment from which a restarted role hears STOP."""
    code = "import sys, dovetail.runtime.ray.roles.robot; print('torch' in sys.modules, 'mujoco' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
